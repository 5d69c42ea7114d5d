"""Divides this machine among instances: cores, a share of a GPU, or a slice of one.

Paper: GMI-DRL §3 chooses by the GPU's generation and by role: MPS for training, MIG for serving. §6.2 compares them
with sharing without either (``none``).
Departure: Slices that exist are used, and none is made. On a GPU that is sliced, training uses the slices, because it
cannot use the whole GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, get_args

from runtime.errors import ExperimentError, one_line

Backend = Literal["cores", "mps", "mig", "none"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
BACKEND_NAMES: Mapping[Backend, str] = {
    "cores": "each pinned to its share of the cores",
    "mps": "each with a share of a GPU",
    "mig": "each on a slice of a GPU",
    "none": "none has a part of the machine of its own",
}
"""Descriptions for users."""
MPS_PROGRAM = "nvidia-cuda-mps-control"
_ANSWER_TIMEOUT_S = 60.0
"""Without persistence mode, a driver takes seconds to wake each GPU."""
_GPU_LINE = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[^)]+)\)")
_SLICE_LINE = re.compile(r"MIG \S+\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it.

    Attributes:
        index: Number, in the order of the PCI bus.
        name: Model name.
        uuid: Begins with ``GPU-``.
        slices: UUIDs of its MIG slices. If it has some, programs can use these only.
    """

    index: int
    name: str
    uuid: str
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The parts of this machine that instances can use.

    Attributes:
        cores: Numbers of the logical cores that this process may use.
        gpus: GPUs that it may use.
        problem: nvidia-smi's message if it did not list GPUs; empty if it did or is not installed.
        has_mps: NVIDIA's MPS is installed.
    """

    cores: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    has_mps: bool = False

    @property
    def whole_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if not gpu.slices)

    @property
    def slices(self) -> tuple[str, ...]:
        return tuple(uuid for gpu in self.gpus for uuid in gpu.slices)


@dataclass(frozen=True)
class Place:
    """An instance's part of the machine.

    Attributes:
        device: Number of the device that it shares with others, from 0. A CPU is one device, and so are all slices:
            between them there is neither NCCL nor access from one to the other.
        cores: Cores that it runs on; empty = any.
        variables: Environment variables for CUDA. They must be set before a process first uses CUDA.
    """

    device: int = 0
    cores: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def look(environ: Mapping[str, str] = os.environ, *, has_gpus: bool = True) -> Machine:
    """Returns the resources of this machine.

    Args:
        environ: This process's environment. GPUs hidden by ``CUDA_VISIBLE_DEVICES`` do not count.
        has_gpus: Whether to look for GPUs by running nvidia-smi, which may take long.
    """
    cores = tuple(sorted(os.sched_getaffinity(0)))
    gpus: tuple[Gpu, ...] = ()
    problem = ""
    if has_gpus and shutil.which("nvidia-smi"):
        try:
            command = ["nvidia-smi", "-L"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
            )
            if done.returncode:
                # Its output contains the reason.
                said = done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}"
                problem = f"nvidia-smi: {one_line(said)}"
            else:
                gpus = visible(parse_gpus(done.stdout), environ.get("CUDA_VISIBLE_DEVICES"))
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"nvidia-smi: {one_line(str(error))}"
    return Machine(cores, gpus, problem, shutil.which(MPS_PROGRAM) is not None)


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """Returns the GPUs, with their slices, in the output of ``nvidia-smi -L``."""
    gpus: list[Gpu] = []
    for line in map(str.strip, listing.splitlines()):
        if gpu := _GPU_LINE.fullmatch(line):
            gpus.append(Gpu(int(gpu[1]), gpu[2], gpu[3]))
        elif one := _SLICE_LINE.fullmatch(line):
            gpus[-1] = replace(gpus[-1], slices=(*gpus[-1].slices, one[1]))
    return tuple(gpus)


def visible(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """Returns the GPUs in ``CUDA_VISIBLE_DEVICES``, by number or UUID prefix; all if it is not set."""
    if variable is None:
        return tuple(gpus)
    names = tuple(name.strip() for name in variable.split(",") if name.strip())
    kept = []
    for gpu in gpus:
        slices = tuple(uuid for uuid in gpu.slices if uuid.startswith(names))
        if str(gpu.index) in names or gpu.uuid.startswith(names):
            kept.append(gpu)
        elif slices:
            kept.append(replace(gpu, slices=slices))
    return tuple(kept)


def choose_backend(
    machine: Machine, wanted: Backend | Literal["auto"], instances: int
) -> tuple[Backend, str]:
    """Chooses how instances share a machine.

    Args:
        wanted: ``learner.backend``.
        instances: Number of instances.

    Returns:
        The backend, and a remark for users if ``auto`` means something unusual here; empty otherwise.

    Raises:
        ExperimentError: The wanted backend is not possible here, or with ``auto`` no backend can use the GPUs.
    """
    refusals = {backend: _refusal(machine, backend, instances) for backend in BACKENDS}
    order: tuple[Backend, ...] = ("mps", "mig", "none") if machine.gpus else ("cores",)
    if wanted != "auto":
        order = (wanted,)
    for place, backend in enumerate(order):
        if not refusals[backend]:
            return backend, "; ".join(f"not {one}: {refusals[one]}" for one in order[:place])
    allowed = [backend for backend in BACKENDS if not refusals[backend]]
    reasons = "; ".join(f"{backend}: {refusals[backend]}" for backend in order)
    raise ExperimentError(
        f"learner.backend = {wanted}: {reasons}; allowed on this machine: {' | '.join(allowed) or 'none of them'}"
    )


def _refusal(machine: Machine, backend: Backend, instances: int) -> str:
    """Returns why a backend is not possible; empty if it is."""
    slices, wholes = len(machine.slices), len(machine.whole_gpus)
    if backend == "cores":
        return ""
    if not machine.gpus:
        return "" if backend == "none" else "there is no GPU"
    if backend == "mig":
        few = f"{instances} instances, and {slices} existing MIG slices; none is made"
        return "" if instances <= slices else few
    if not wholes:
        return "all GPUs are sliced, so that a process has a slice alone"
    if backend == "mps" and not machine.has_mps:
        return f"{MPS_PROGRAM} is not on PATH"
    return ""


def places(
    machine: Machine,
    backend: Backend,
    instances: int,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Place, ...]:
    """Divides a machine evenly among instances. Neighbors share a device and have neighboring cores.

    Args:
        backend: Result of `choose_backend` for this number of instances.
        variables: Environment variables of all, such as those by which programs find the daemon of MPS.
    """
    gpus = machine.whole_gpus[:instances]
    devices = [len(gpus) * one // instances for one in range(instances)]
    made = []
    for one, device in enumerate(devices):
        start, end = (len(machine.cores) * bound // instances for bound in (one, one + 1))
        cores = machine.cores[start : max(end, start + 1)] if backend != "none" else ()
        own = dict(variables)
        if backend == "cores":
            own["CUDA_VISIBLE_DEVICES"] = ""
        elif backend == "mig":
            own["CUDA_VISIBLE_DEVICES"] = machine.slices[one]
        elif gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[device].uuid
        if backend == "mps":
            # See NVIDIA's MPS guide, "Environment Variables".
            own["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{100 // devices.count(device)}"
        made.append(Place(0 if backend == "mig" else device, cores, own))
    return tuple(made)
