"""Divides this machine among instances: cores, a share of a GPU, or a slice of one.

Paper: GMI-DRL §3 chooses by the GPU's generation and by role: MPS for training, MIG for serving. §6.2 compares them
with sharing without either (``none``). The paper does not say how slices are made. This code uses slices and never
makes them, because that takes root's rights and an idle GPU.
Departure: On a GPU that is already sliced, training uses the slices, because it cannot use the whole GPU.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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
MPS_CLIENTS_MAX = 48
"""Maximum contexts of an MPS server on a device, Volta or later; 60 since CUDA 13.1. NVIDIA's MPS guide."""
VOLTA = (7, 0)
"""Lowest compute capability for which MPS gives shares. NVIDIA's MPS guide, "Volta MPS"."""
_QUERY = (
    "--query-gpu=index,name,uuid,memory.total,compute_cap,mig.mode.current",
    "--format=csv,noheader,nounits",
)
_ANSWER_TIMEOUT_S = 60.0
"""Without persistence mode, a driver takes seconds to wake each GPU."""
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: GPU-[^)]+\)")
_SLICE_LINE = re.compile(r"MIG \S+\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
_MEMORY_MIB = 200
"""Minimum memory of an instance, mostly PyTorch's. Measured: 206, with 32 on one machine."""
_TOPOLOGY = Path("/sys/devices/system/cpu")
_FILES_EACH, _FILES_BESIDES = 2, 40
"""Open files of a process of a run, per instance and in addition. Measured: 21 additional files in the trainer."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi reports it.

    Attributes:
        index: Number, in the order of the PCI bus.
        name: Model name.
        uuid: Begins with ``GPU-``.
        memory_mib: Memory in MiB; None if not reported, for example because it shares the host's.
        capability: Compute capability, such as (8, 0); None if not reported.
        is_sliced: MIG mode is on, and programs can use its slices only.
        slices: UUIDs of its MIG slices, in nvidia-smi's order.
    """

    index: int
    name: str
    uuid: str
    memory_mib: int | None = None
    capability: tuple[int, int] | None = None
    is_sliced: bool = False
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The parts of this machine that instances can use.

    Attributes:
        cores: Numbers of the logical cores that this process may use, neighbors side by side.
        gpus: GPUs that it may use.
        problem: nvidia-smi's message if it did not list GPUs; empty if it did or is not installed.
        can_pin: Processes can be pinned to cores.
        has_mps: NVIDIA's MPS is installed.
    """

    cores: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    can_pin: bool = True
    has_mps: bool = False

    @property
    def whole_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if not gpu.is_sliced)

    @property
    def slice_count(self) -> int:
        return sum(len(gpu.slices) for gpu in self.gpus)


@dataclass(frozen=True)
class Place:
    """An instance's part of the machine.

    Attributes:
        device: Number of the device that it shares with others, from 0; a CPU is one device.
        cores: Cores that it runs on; empty = any.
        variables: Environment variables for CUDA. They must be set before a process first uses CUDA.
    """

    device: int = 0
    cores: tuple[int, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def look(environ: Mapping[str, str] = os.environ, *, has_gpus: bool = True) -> Machine:
    """Returns the resources of this machine.

    Args:
            has_gpus: Whether to look for GPUs by running nvidia-smi, which may take long.
            environ: This process's environment. GPUs hidden by ``CUDA_VISIBLE_DEVICES`` do not count.
    """
    can_pin = hasattr(os, "sched_setaffinity")
    usable = os.sched_getaffinity(0) if can_pin else range(os.cpu_count() or 1)
    if not has_gpus:
        return Machine(order_cores(usable, _TOPOLOGY), can_pin=can_pin)
    try:
        gpus, problem = (
            _visible(parse_gpus(_ask(*_QUERY), _ask("-L")), environ.get("CUDA_VISIBLE_DEVICES")),
            "",
        )
    except FileNotFoundError:
        gpus, problem = (), ""
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        gpus, problem = (), f"nvidia-smi: {one_line(str(error))}"
    return Machine(
        order_cores(usable, _TOPOLOGY),
        gpus,
        problem,
        can_pin,
        shutil.which(MPS_PROGRAM) is not None,
    )


def _ask(*words: str) -> str:
    """Returns nvidia-smi's output, which on failure contains the reason."""
    done = subprocess.run(
        ["nvidia-smi", *words],
        capture_output=True,
        text=True,
        timeout=_ANSWER_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(
            done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}"
        )
    return done.stdout


def order_cores(usable: Collection[int], topology: Path) -> tuple[int, ...]:
    """Sorts logical cores so that cores of the same processor, and of the same physical core, are side by side.

    Args:
        usable: Numbers of the cores.
        topology: Linux's folder with the cores' topology. A core missing there is sorted by its number.
    """

    def place(core: int) -> tuple[int, int, int]:
        folder = topology / f"cpu{core}" / "topology"
        try:
            return (
                int((folder / "physical_package_id").read_text()),
                int((folder / "core_id").read_text()),
                core,
            )
        except (OSError, ValueError):
            return 0, core, core

    return tuple(sorted(usable, key=place))


def parse_gpus(rows: str, listing: str) -> tuple[Gpu, ...]:
    """Parses nvidia-smi's output.

    Args:
        rows: Its query's result, comma-separated: index, name, UUID, MiB, compute capability and MIG mode, a GPU per
            line.
        listing: Output of ``nvidia-smi -L``, which alone lists MIG slices by the UUIDs that CUDA takes.

    Raises:
        ValueError: A row cannot be parsed.
    """
    slices: dict[int, list[str]] = {}
    for line in map(str.strip, listing.splitlines()):
        if gpu := _GPU_LINE.fullmatch(line):
            found = slices.setdefault(int(gpu[1]), [])
        elif one := _SLICE_LINE.fullmatch(line):
            found.append(one[1])
    return tuple(_parse_gpu(row, slices) for row in rows.splitlines() if row.strip())


def _parse_gpu(row: str, slices: Mapping[int, Sequence[str]]) -> Gpu:
    try:
        index, name, uuid, memory, capability, mode = (one.strip() for one in row.split(","))
        own = tuple(slices.get(int(index), ()))
    except ValueError:
        raise ValueError(f"a row is not understood: {row!r:.100}") from None
    major_minor = re.fullmatch(r"(\d+)\.(\d+)", capability)
    return Gpu(
        int(index),
        name,
        uuid,
        int(memory) if memory.isdigit() else None,
        (int(major_minor[1]), int(major_minor[2])) if major_minor else None,
        mode == "Enabled" or bool(own),
        own,
    )


def _visible(gpus: tuple[Gpu, ...], variable: str | None) -> tuple[Gpu, ...]:
    """Returns the GPUs in ``CUDA_VISIBLE_DEVICES``, by number or UUID prefix; all if it is not set."""
    if variable is None:
        return gpus
    names = [name.strip() for name in variable.split(",") if name.strip()]

    def is_named(uuid: str) -> bool:
        return any(uuid.startswith(name) for name in names)

    kept = []
    for gpu in gpus:
        if str(gpu.index) in names or is_named(gpu.uuid):
            kept.append(gpu)
        elif some := tuple(filter(is_named, gpu.slices)):
            kept.append(replace(gpu, slices=some))
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
    order: tuple[Backend, ...] = ("cores", "none")
    if machine.gpus:
        order = ("mps", "mig", "none")
    if wanted != "auto":
        if not refusals[wanted]:
            return wanted, ""
        reason = refusals[wanted]
    else:
        remarks = [machine.problem] * bool(machine.problem)
        for backend in order:
            if not refusals[backend]:
                return backend, "; ".join(remarks)
            # Do not remark that a GPU is not sliced.
            remarks += [f"not {backend}: {refusals[backend]}"] * (
                backend != "mig" or machine.slice_count > 0
            )
        reason = "; ".join(f"not {backend}: {refusals[backend]}" for backend in order)
    allowed = [backend for backend in BACKENDS if not refusals[backend]]
    raise ExperimentError(
        f"learner.backend = {wanted}: {reason}; allowed on this machine: "
        f"{' | '.join(allowed) or 'none of them'}"
    )


def _refusal(machine: Machine, backend: Backend, instances: int) -> str:
    """Returns why a backend is not possible; empty if it is."""
    sliced = [gpu for gpu in machine.gpus if gpu.is_sliced]
    if backend == "cores":
        return "" if machine.can_pin else "this system does not pin processes to cores"
    if not machine.gpus:
        return (
            ""
            if backend == "none"
            else f"there is no GPU{f' ({machine.problem})' * bool(machine.problem)}"
        )
    if backend == "mig":
        if not sliced:
            return "MIG mode is off, and slices are used, never made"
        if not machine.slice_count:
            return (
                f"MIG mode is on, but {_named(sliced)} has no slices, and they are used, never made"
            )
        return (
            ""
            if instances <= machine.slice_count
            else f"{instances} instances, and {machine.slice_count} slices"
        )
    if not machine.whole_gpus:
        return "MIG mode is on, so that a process has a slice alone"
    if backend == "none":
        return ""
    if old := [
        gpu for gpu in machine.whole_gpus if gpu.capability is None or gpu.capability < VOLTA
    ]:
        return f"{_named(old)} is older than Volta, or does not tell its compute capability"
    if not machine.has_mps:
        return f"{MPS_PROGRAM} is not on PATH"
    most = MPS_CLIENTS_MAX * len(machine.whole_gpus)
    return (
        ""
        if instances <= most
        else f"{instances} instances, and {MPS_CLIENTS_MAX} are the most that a GPU holds"
    )


def _named(gpus: Sequence[Gpu]) -> str:
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)} ({gpus[0].name})"


def _memory_bytes() -> int:
    """Returns this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(key: str, size: int) -> None:
    """Checks that this machine has enough memory for what instances share.

    Args:
        key: The settings that determine the size, with their values.
        size: Bytes of shared memory.

    Raises:
        ExperimentError: It has too little.
    """
    has = _memory_bytes()
    if size > has:
        raise ExperimentError(
            f"{key} share {size / 2**20:,.0f} MiB of memory, and this machine has "
            f"{has / 2**20:,.0f} MiB; allowed: fewer or shorter fragments"
        )


def check_room(instances: int) -> None:
    """Checks that this machine has room for this many instances: memory and open files.

    Otherwise the system may end the run, or the run may wait for an instance that it cannot hear.

    Raises:
        ExperimentError: There is too little room.
    """
    key = f"learner.instances = {instances}"
    memory_mib = _memory_bytes() // 2**20
    if instances * _MEMORY_MIB > memory_mib:
        raise ExperimentError(
            f"{key}: each takes {_MEMORY_MIB} MiB at least, and this machine has {memory_mib} MiB; "
            f"allowed: 1 to {memory_mib // _MEMORY_MIB}"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_EACH * instances + _FILES_BESIDES
    if most != resource.RLIM_INFINITY and needed > most:
        fitting = (most - _FILES_BESIDES) // _FILES_EACH
        raise ExperimentError(
            f"{key}: a process of such a run has up to {needed} files open, and here it may have {most}; allowed: "
            + f"1 to {fitting}, or " * (fitting > 0)
            + f"ulimit -n {needed}"
        )


def choose_reduction(backend: Backend, wanted: str) -> str:
    """Returns how gradients are summed: as wanted, except that MIG slices sum through the host.

    Args:
        wanted: ``learner.reduction``.

    Raises:
        ExperimentError: Another reduction is wanted between slices.
    """
    if backend != "mig":
        return wanted
    if wanted not in ("auto", "mpr"):
        raise ExperimentError(
            f"learner.reduction = {wanted}: instances have MIG slices, and between these there "
            "is neither NCCL nor access from one to the other; allowed: auto | mpr"
        )
    return "mpr"


def places(
    machine: Machine, backend: Backend, instances: int, variables: Mapping[str, str] | None = None
) -> tuple[Place, ...]:
    """Divides a machine evenly among instances. Neighbors share a device and have neighboring cores.

    Args:
        backend: Result of `choose_backend` for this number of instances.
        variables: With ``mps``, variables by which programs find its daemon (`runtime.gmi.mps.MpsDaemon.variables`).
    """
    cores = [
        () if backend == "none" or not machine.can_pin else tuple(machine.cores[start:end])
        for start, end in _divided(len(machine.cores), instances)
    ]
    if backend == "cores":
        return tuple(Place(0, own, {"CUDA_VISIBLE_DEVICES": ""}) for own in cores)
    if backend == "mig":
        return tuple(
            Place(device, own, {"CUDA_VISIBLE_DEVICES": uuid})
            for own, (device, uuid) in zip(
                cores, _spread_slices(machine.gpus, instances), strict=True
            )
        )
    if not machine.gpus:
        return tuple(Place(0, own) for own in cores)
    gpus = machine.whole_gpus[:instances]
    devices = [start for start, _ in _divided(len(gpus), instances)]
    return tuple(
        Place(
            device,
            own,
            {
                "CUDA_VISIBLE_DEVICES": gpus[device].uuid,
                **(
                    _share(gpus[device], devices.count(device), variables or {})
                    if backend == "mps"
                    else {}
                ),
            },
        )
        for device, own in zip(devices, cores, strict=True)
    )


def _divided(count: int, parts: int) -> list[tuple[int, int]]:
    """Returns the bounds of parts of a sequence. Parts have at least one element and overlap if there are too few."""
    bounds = [(part * count // parts, (part + 1) * count // parts) for part in range(parts)]
    return [(start, max(end, start + 1)) for start, end in bounds]


def _spread_slices(gpus: Sequence[Gpu], instances: int) -> list[tuple[int, str]]:
    """Returns GPU numbers and slice UUIDs: one slice of each GPU before a second of any, neighbors together."""
    ranked = sorted(
        (rank, device, uuid)
        for device, gpu in enumerate(gpus)
        for rank, uuid in enumerate(gpu.slices)
    )
    return [
        (device, uuid)
        for device, _, uuid in sorted(
            (device, rank, uuid) for rank, device, uuid in ranked[:instances]
        )
    ]


def _share(gpu: Gpu, clients: int, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of one of a GPU's MPS clients: an even share of its threads and memory.

    See NVIDIA's MPS guide, "Environment Variables". A program sees one device, numbered 0. The memory limit counts
    devices as the program sees them; that is common usage, but not in the guide.
    """
    memory = (
        {}
        if gpu.memory_mib is None
        else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={gpu.memory_mib // clients}M"}
    )
    return {**variables, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // clients), **memory}
