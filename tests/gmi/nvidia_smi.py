"""Recorded answers of nvidia-smi on other machines, and a program ``nvidia-smi`` that repeats them.

Listings (``nvidia-smi -L``) and failures are as published. No public record has all six fields of our query in one row.
Each field of a row was published as an answer of nvidia-smi, cited in `SOURCES`. UUIDs of zeros, the memory of a TITAN
V, and all of `SILENT` are made up.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

SOURCES = {
    "T4": "UUID, MIG mode N/A: NVIDIA/nvidia-docker#1628; memory: modal-labs/modal-client#2797",
    "A10G": "UUIDs: four conformance and benchmark logs of g5 nodes; memory: modal-labs/modal-client#2797; "
    "capability: vantage-sh/ec2instances.info#724",
    "L4": "UUID: an EKS conformance log; memory: modal-labs/modal-client#2797; capability: NVIDIA/JAX-Toolbox#173",
    "V100": "memory, MIG mode N/A: Wan-Video/Wan2.1#5",
    "TITAN V": "UUIDs, capabilities: triton-inference-server/server#8070",
    "A100": "the DGX A100: openshift-psap/blog-artifacts, DGX-A100_GPU-Operator_testing, custom-config, 2021-12-17",
    "A100 80GB": "listing: DataDog/datadog-agent#33120",
    "A100 PCIe": "listing: docs.rapids.ai, guide to MIG with Dask-CUDA",
    "H100": "memory: modal-labs/modal-client#2797",
    "GTX 1660": "row with [N/A]: a log of a host with this card, driver 591.86",
    "GB10": "row with [N/A] for the memory, which it shares with the host: a log of driver 595.71.05",
    "P4": "capability: vllm-project/vllm#1431",
}
FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n"
)
"""NVIDIA/nvidia-docker#988 and many others."""


@dataclass(frozen=True)
class Answers:
    """A machine's nvidia-smi.

    Attributes:
        rows: Its answer to our query.
        listing: Its answer to ``-L``.
        code: Its exit code.
    """

    rows: str
    listing: str = ""
    code: int = 0


T4 = Answers(
    "0, Tesla T4, GPU-39cd9454-0976-646a-acef-01a35ad02034, 15360, 7.5, [N/A]\n",
    "GPU 0: Tesla T4 (UUID: GPU-39cd9454-0976-646a-acef-01a35ad02034)\n",
)
_A10GS = (
    "GPU-a669635e-6dfb-38a3-2f06-448166423d32",
    "GPU-490bc72f-1c3c-c960-4fe2-d42c7d90a1e1",
    "GPU-4aa494b9-9659-a279-8cc5-12c1c9fbf439",
    "GPU-13053a70-a369-ca00-8cf0-3c9b4bc86715",
)
A10G_4 = Answers(
    "".join(
        f"{index}, NVIDIA A10G, {uuid}, 23028, 8.6, [N/A]\n" for index, uuid in enumerate(_A10GS)
    ),
    "".join(f"GPU {index}: NVIDIA A10G (UUID: {uuid})\n" for index, uuid in enumerate(_A10GS)),
)
L4 = Answers(
    "0, NVIDIA L4, GPU-c2f76b33-7953-256e-8f33-1343419b1a1c, 23034, 8.9, [N/A]\n",
    "GPU 0: NVIDIA L4 (UUID: GPU-c2f76b33-7953-256e-8f33-1343419b1a1c)\n",
)
V100 = Answers(
    "0, Tesla V100-SXM2-32GB, GPU-00000000-0000-0000-0000-000000000070, 32768, 7.0, [N/A]\n",
    "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-00000000-0000-0000-0000-000000000070)\n",
)
TITAN_V_AND_ADA = Answers(
    "0, NVIDIA TITAN V, GPU-b5169cef-2205-c30e-f2b3-220cfa14bafd, 12288, 7.0, [N/A]\n"
    "1, NVIDIA RTX 5880 Ada Generation, GPU-7518f6b0-991f-ce2b-3d37-c779130d3137, 49140, 8.9, [N/A]\n",
    "GPU 0: NVIDIA TITAN V (UUID: GPU-b5169cef-2205-c30e-f2b3-220cfa14bafd)\n"
    "GPU 1: NVIDIA RTX 5880 Ada Generation (UUID: GPU-7518f6b0-991f-ce2b-3d37-c779130d3137)\n",
)
P4 = Answers(
    "0, Tesla P4, GPU-00000000-0000-0000-0000-000000000061, 7680, 6.1, [N/A]\n",
    "GPU 0: Tesla P4 (UUID: GPU-00000000-0000-0000-0000-000000000061)\n",
)
H100 = Answers(
    "0, NVIDIA H100 80GB HBM3, GPU-8c35f4c9-4dff-c9a2-866f-afb5d82e1dd7, 81559, 9.0, Disabled\n",
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c35f4c9-4dff-c9a2-866f-afb5d82e1dd7)\n",
)
GTX_1660 = Answers(
    "0, NVIDIA GeForce GTX 1660 SUPER, GPU-43b14c17-b685-e8ad-ab90-abc0d70fca06, 6144, 7.5, [N/A]\n",
    "GPU 0: NVIDIA GeForce GTX 1660 SUPER (UUID: GPU-43b14c17-b685-e8ad-ab90-abc0d70fca06)\n",
)
GB10 = Answers(
    "0, NVIDIA GB10, GPU-d991dc71-7825-0bf8-3339-cb2e7ead6a32, [N/A], 12.1, [N/A]\n",
    "GPU 0: NVIDIA GB10 (UUID: GPU-d991dc71-7825-0bf8-3339-cb2e7ead6a32)\n",
)
UNKNOWN = Answers(
    "0, NVIDIA Graphics Device, GPU-307f0000-0000-0000-0000-000000000000, 294912, 10.7, Disabled\n",
    "GPU 0: NVIDIA Graphics Device (UUID: GPU-307f0000-0000-0000-0000-000000000000)\n",
)
"""A driver's name for a GPU that is newer than itself."""
SILENT = Answers(
    "0, NVIDIA Graphics Device, GPU-307f0000-0000-0000-0000-000000000000, [N/A], [N/A], [N/A]\n",
    "GPU 0: NVIDIA Graphics Device (UUID: GPU-307f0000-0000-0000-0000-000000000000)\n",
)

DGX_LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-4dd97325-7fe6-abf1-d6a9-ba746fe0fdab)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-9e13f17f-a213-eb38-9a9c-0b2a540e4908)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-1ae21a3c-f40b-77a7-002f-4b0b52b05f5b)
GPU 3: NVIDIA A100-SXM4-40GB (UUID: GPU-eeb0f073-2f03-6035-72a3-7b1ac76c5a72)
GPU 4: NVIDIA A100-SXM4-40GB (UUID: GPU-c9297a60-5079-9a56-b935-51e08dc0f65e)
  MIG 1g.5gb      Device  0: (UUID: MIG-1c5876e6-d3b9-524a-9eb4-664fcfbd4de2)
  MIG 1g.5gb      Device  1: (UUID: MIG-934fe587-ac95-5d75-bf9e-f40befeb9b28)
  MIG 1g.5gb      Device  2: (UUID: MIG-4dcaea94-446a-522c-88e1-e8fb193ca789)
  MIG 1g.5gb      Device  3: (UUID: MIG-dd39e743-ed46-5a4a-bf9b-2d33388a6b61)
  MIG 1g.5gb      Device  4: (UUID: MIG-144a6174-a7a4-5b1f-85d2-4088e307aaa7)
  MIG 1g.5gb      Device  5: (UUID: MIG-f25c64a5-afbc-5311-bc04-6ba3b4212a2a)
  MIG 1g.5gb      Device  6: (UUID: MIG-42b3ba88-8dc5-5e51-9c89-76885370b661)
GPU 5: NVIDIA A100-SXM4-40GB (UUID: GPU-4fb17cd5-cad8-31a6-34d3-08434d926140)
  MIG 2g.10gb     Device  0: (UUID: MIG-bd4c1a2b-57e1-5df5-ac76-30cd1423b65e)
  MIG 2g.10gb     Device  1: (UUID: MIG-82b0c2d6-8829-56e4-9c64-f7ba16ae6c95)
  MIG 2g.10gb     Device  2: (UUID: MIG-7bd5246b-d60f-5700-9106-8457dd4ca03c)
GPU 6: NVIDIA A100-SXM4-40GB (UUID: GPU-55b69871-247e-9b99-a60a-7daca59a4108)
  MIG 3g.20gb     Device  0: (UUID: MIG-2944fa25-4112-52cc-a727-1cf09ba63e98)
  MIG 3g.20gb     Device  1: (UUID: MIG-4c7db5d8-f005-5927-803e-9ee984a56e15)
GPU 7: NVIDIA A100-SXM4-40GB (UUID: GPU-fccb396c-ecba-9822-6217-a790cd2c9d3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-b9e81bd3-7504-588b-b3e7-d7607ea5e8ba)
  MIG 2g.10gb     Device  1: (UUID: MIG-1765bea3-82da-57d7-b4d7-21c06f58c24a)
  MIG 1g.5gb      Device  2: (UUID: MIG-0b5ad859-df2d-5646-9b82-407a9ab33f44)
  MIG 1g.5gb      Device  3: (UUID: MIG-2bcdbd01-44e6-5f68-ae6f-77448d2529f9)
"""
"""Four GPUs with MIG mode off, then 7 x 1g, 3 x 2g, 2 x 3g, and a mixture."""


def dgx(*indices: int, is_mig_on: bool | None = None, has_slices: bool = True) -> Answers:
    """Returns the DGX A100 with only these GPUs, renumbered from 0, with its own MIG mode or the given one."""
    blocks = re.split(r"(?m)^(?=GPU)", DGX_LISTING)[1:]
    rows, listing = "", ""
    for number, index in enumerate(indices):
        first, *slices = blocks[index].splitlines(keepends=True)
        uuid = first.rpartition("UUID: ")[2].rstrip(")\n")
        mode = "Enabled" if (bool(slices) if is_mig_on is None else is_mig_on) else "Disabled"
        rows += f"{number}, NVIDIA A100-SXM4-40GB, {uuid}, 40960, 8.0, {mode}\n"
        listing += first.replace(f"GPU {index}:", f"GPU {number}:") + "".join(
            slices if has_slices else []
        )
    return Answers(rows, listing)


A100_OFF = dgx(0)
A100_8_OFF = dgx(*range(8), is_mig_on=False, has_slices=False)
DGX = dgx(*range(8))
A100_80GB = Answers(
    "0, NVIDIA A100-SXM4-80GB, GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16, 81920, 8.0, Enabled\n",
    """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16)
  MIG 1g.10gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)
  MIG 1g.10gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)
  MIG 1g.10gb     Device  2: (UUID: MIG-50f1c4c9-1508-5e8d-bb06-d08145b22e01)
  MIG 1g.10gb     Device  3: (UUID: MIG-36c795f2-5cf7-55d6-af30-e535e79b7bb6)
  MIG 1g.10gb     Device  4: (UUID: MIG-3f45d38c-8cee-503e-b806-a1f1bdceedeb)
  MIG 1g.10gb     Device  5: (UUID: MIG-96655de9-9525-58f9-a62b-0e4c1cc1c265)
  MIG 1g.10gb     Device  6: (UUID: MIG-1aae4990-b962-574e-8375-119d6d9b9687)
""",
)
A100_PCIE = Answers(
    "0, NVIDIA A100-PCIE-40GB, GPU-84fd49f2-48ad-50e8-9f2e-3bf0dfd47ccb, 40960, 8.0, Enabled\n",
    """\
GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-84fd49f2-48ad-50e8-9f2e-3bf0dfd47ccb)
  MIG 2g.10gb     Device  0: (UUID: MIG-41b3359c-e721-56e5-8009-12e5797ed514)
  MIG 2g.10gb     Device  1: (UUID: MIG-65b79fff-6d3c-5490-a288-b31ec705f310)
  MIG 2g.10gb     Device  2: (UUID: MIG-c6e2bae8-46d4-5a7e-9a68-c6cf1f680ba0)
""",
)
BROKEN = Answers(FAILED, FAILED, 9)


def install(folder: Path, answers: Answers, *, has_mps: bool = True) -> None:
    """Writes an ``nvidia-smi`` that answers only these two queries, and a program with MPS's name."""
    script = (
        '#!/bin/sh\ncase "$*" in\n'
        f"-L) printf %s {shlex.quote(answers.listing)} ;;\n"
        '"--query-gpu=index,name,uuid,memory.total,compute_cap,mig.mode.current --format=csv,noheader,nounits")\n'
        f"  printf %s {shlex.quote(answers.rows)} ;;\n"
        '*) echo "Invalid combination of input arguments. Please run nvidia-smi -h for help."; exit 2 ;;\n'
        f"esac\nexit {answers.code}\n"
    )
    programs = {
        "nvidia-smi": script,
        **({"nvidia-cuda-mps-control": "#!/bin/sh\nexit 1\n"} if has_mps else {}),
    }
    for name, text in programs.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
