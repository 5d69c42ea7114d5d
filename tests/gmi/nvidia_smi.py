"""Recorded answers of ``nvidia-smi -L`` on other machines, and a program ``nvidia-smi`` that repeats them.

They are as published: UUIDs of four g5 nodes' logs; NVIDIA/nvidia-docker#1628; the DGX A100 of
openshift-psap/blog-artifacts, custom-config, 2021-12-17; docs.rapids.ai, guide to MIG with Dask-CUDA.
"""

from __future__ import annotations

import shlex
from pathlib import Path

FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running.\n"
)
"""NVIDIA/nvidia-docker#988 and many others."""
T4 = "GPU 0: Tesla T4 (UUID: GPU-39cd9454-0976-646a-acef-01a35ad02034)\n"
H100 = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-8c35f4c9-4dff-c9a2-866f-afb5d82e1dd7)\n"
A10G_4 = """\
GPU 0: NVIDIA A10G (UUID: GPU-a669635e-6dfb-38a3-2f06-448166423d32)
GPU 1: NVIDIA A10G (UUID: GPU-490bc72f-1c3c-c960-4fe2-d42c7d90a1e1)
GPU 2: NVIDIA A10G (UUID: GPU-4aa494b9-9659-a279-8cc5-12c1c9fbf439)
GPU 3: NVIDIA A10G (UUID: GPU-13053a70-a369-ca00-8cf0-3c9b4bc86715)
"""
A100_PCIE = """\
GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-84fd49f2-48ad-50e8-9f2e-3bf0dfd47ccb)
  MIG 2g.10gb     Device  0: (UUID: MIG-41b3359c-e721-56e5-8009-12e5797ed514)
  MIG 2g.10gb     Device  1: (UUID: MIG-65b79fff-6d3c-5490-a288-b31ec705f310)
  MIG 2g.10gb     Device  2: (UUID: MIG-c6e2bae8-46d4-5a7e-9a68-c6cf1f680ba0)
"""
DGX = """\
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


def install(folder: Path, listing: str, *, code: int = 0) -> None:
    """Writes an ``nvidia-smi`` that answers only this query, and a program with MPS's name."""
    script = (
        '#!/bin/sh\ncase "$*" in\n'
        f"-L) printf %s {shlex.quote(listing)} ;;\n"
        '*) echo "Invalid combination of input arguments. Please run nvidia-smi -h for help."; exit 2 ;;\n'
        f"esac\nexit {code}\n"
    )
    for name, text in (("nvidia-smi", script), ("nvidia-cuda-mps-control", "#!/bin/sh\nexit 1\n")):
        path = folder / name
        path.write_text(text)
        path.chmod(0o755)
