"""A machine's devices and each instance's share of them, from recorded answers of nvidia-smi."""

from __future__ import annotations

import itertools
import os
import resource
from collections import Counter
from pathlib import Path

import pytest

from runtime.errors import ExperimentError
from runtime.gmi import devices
from runtime.gmi.devices import (
    Machine,
    choose_backend,
    choose_reduction,
    look,
    order_cores,
    parse_gpus,
    places,
)
from tests.gmi import nvidia_smi
from tests.gmi.nvidia_smi import Answers, dgx, install

CORES = tuple(range(8))
WITH_GPU = (
    nvidia_smi.T4,
    nvidia_smi.A10G_4,
    nvidia_smi.L4,
    nvidia_smi.V100,
    nvidia_smi.TITAN_V_AND_ADA,
    nvidia_smi.H100,
    nvidia_smi.GTX_1660,
    nvidia_smi.GB10,
    nvidia_smi.UNKNOWN,
    nvidia_smi.A100_OFF,
    nvidia_smi.A100_8_OFF,
)
SLICED = {7: nvidia_smi.A100_80GB, 3: nvidia_smi.A100_PCIE, 2: dgx(6), 4: dgx(7)}
"""Machines by number of slices."""
NO_SLICES = dgx(0, is_mig_on=True)


def machine(
    answers: Answers | None = None, *, has_mps: bool = True, can_pin: bool = True
) -> Machine:
    gpus = parse_gpus(answers.rows, answers.listing) if answers else ()
    return Machine(CORES, gpus, has_mps=has_mps, can_pin=can_pin)


def refusal(*arguments, **settings) -> str:
    with pytest.raises(ExperimentError) as error:
        choose_backend(*arguments, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


# Devices of the machine


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns a folder that is the entire PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_gpus_are_read_with_all_that_nvidia_smi_tells(path: Path) -> None:
    install(path, nvidia_smi.A10G_4)
    found = look({})
    assert [
        (gpu.index, gpu.name, gpu.memory_mib, gpu.capability, gpu.is_sliced) for gpu in found.gpus
    ] == [(index, "NVIDIA A10G", 23028, (8, 6), False) for index in range(4)]
    assert [gpu.uuid for gpu in found.gpus][1] == "GPU-490bc72f-1c3c-c960-4fe2-d42c7d90a1e1"
    assert (found.problem, found.has_mps, found.can_pin) == ("", True, True)
    assert set(found.cores) == os.sched_getaffinity(0)
    install(path, nvidia_smi.SILENT)
    assert [(gpu.memory_mib, gpu.capability, gpu.is_sliced) for gpu in look({}).gpus] == [
        (None, None, False)
    ]


def test_slices_belong_to_their_gpu(path: Path) -> None:
    install(path, nvidia_smi.DGX)
    gpus = look({}).gpus
    assert [len(gpu.slices) for gpu in gpus] == [0, 0, 0, 0, 7, 3, 2, 4]
    assert [gpu.is_sliced for gpu in gpus] == [False] * 4 + [True] * 4
    assert gpus[5].slices[1] == "MIG-82b0c2d6-8829-56e4-9c64-f7ba16ae6c95"
    assert len({uuid for gpu in gpus for uuid in gpu.slices}) == 16


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (nvidia_smi.BROKEN, "couldn't communicate with the NVIDIA driver"),
        (Answers("0, Tesla T4, GPU-1, 15360, 7.5\n"), "a row is not understood"),
        (Answers("", code=1), "exit code 1"),
    ],
)
def test_a_driver_that_fails_is_no_gpu_and_its_reason_is_kept(
    path: Path, answers: Answers, said: str
) -> None:
    install(path, answers)
    found = look({})
    assert found.gpus == ()
    assert said in found.problem
    assert found.problem.startswith("nvidia-smi: ") and "\n" not in found.problem
    assert choose_backend(found, "auto", 2) == ("cores", found.problem), (
        "it is reported, and the run continues"
    )
    assert said in refusal(found, "mps", 2)


@pytest.mark.parametrize(
    ("variable", "gpus", "slices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7], 16),
        ("0,2", [0, 2], 0),
        ("", [], 0),
        ("GPU-9e13f17f", [1], 0),
        (" 1 , 6 ", [1, 6], 2),
        (
            "MIG-bd4c1a2b-57e1-5df5-ac76-30cd1423b65e,MIG-2944fa25-4112-52cc-a727-1cf09ba63e98",
            [5, 6],
            2,
        ),
    ],
)
def test_what_cuda_visible_devices_hides_is_not_there(
    path: Path, variable: str | None, gpus: list[int], slices: int
) -> None:
    install(path, nvidia_smi.DGX)
    found = look({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable})
    assert ([gpu.index for gpu in found.gpus], found.slice_count) == (gpus, slices)


def topology(folder: Path, packages: int, cores: int) -> Path:
    """Uses the order of EC2 instances: the second threads of all cores follow the first ones."""
    half = packages * cores
    for cpu in range(2 * half):
        place = folder / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "physical_package_id").write_text(f"{cpu % half // cores}\n")
        (place / "core_id").write_text(f"{cpu % cores}\n")
    return folder


def test_threads_of_a_core_stand_side_by_side_and_processors_one_after_the_other(
    tmp_path: Path,
) -> None:
    folder = topology(tmp_path, 2, 2)
    assert order_cores(range(8), folder) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert order_cores({7, 1, 5}, folder) == (1, 5, 7), "the usable cores"
    assert order_cores({3, 1}, tmp_path / "none") == (1, 3)


# Choice of backend


def test_whole_gpus_from_volta_on_are_shared_by_mps() -> None:
    for answers in WITH_GPU:
        assert choose_backend(machine(answers), "auto", 4) == ("mps", "")
    old, plain = machine(nvidia_smi.P4), machine(nvidia_smi.V100, has_mps=False)
    assert [choose_backend(one, "auto", 4)[0] for one in (old, plain)] == [
        "none",
        "none",
    ]


def test_without_a_gpu_instances_get_cores() -> None:
    assert choose_backend(machine(), "auto", 4) == ("cores", "")
    assert choose_backend(machine(can_pin=False), "auto", 4) == (
        "none",
        "not cores: this system does not pin processes to cores",
    )


@pytest.mark.parametrize("slices", SLICED)
def test_slices_are_used_where_a_gpu_is_nothing_else(slices: int) -> None:
    found = machine(SLICED[slices])
    backend, remark = choose_backend(found, "auto", slices)
    assert (backend, remark) == (
        "mig",
        "not mps: MIG mode is on, so that a process has a slice alone",
    )


def test_more_instances_than_slices_are_refused() -> None:
    text = refusal(machine(SLICED[7]), "auto", 8)
    assert "not mig: 8 instances, and 7 slices" in text and "allowed on this machine: cores" in text


@pytest.mark.parametrize(
    ("wanted", "found", "reason", "allowed"),
    [
        ("mps", machine(), "there is no GPU", "cores | none"),
        ("mig", machine(), "there is no GPU", "cores | none"),
        (
            "mps",
            machine(nvidia_smi.T4, has_mps=False),
            "nvidia-cuda-mps-control is not on PATH",
            "cores | none",
        ),
        ("mps", machine(nvidia_smi.P4), "GPU 0 (Tesla P4) is older than Volta", "cores | none"),
        ("mps", machine(nvidia_smi.SILENT), "does not tell its compute capability", "cores | none"),
        (
            "mig",
            machine(nvidia_smi.A100_OFF),
            "MIG mode is off, and slices are used, never made",
            "cores | mps | none",
        ),
        ("none", machine(SLICED[4]), "MIG mode is on", "cores | mig"),
        ("mig", machine(SLICED[2]), "4 instances, and 2 slices", "cores"),
        ("cores", machine(can_pin=False), "does not pin processes to cores", "none"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason_and_what_is(
    wanted: str, found: Machine, reason: str, allowed: str
) -> None:
    text = refusal(found, wanted, 4)
    assert text.startswith(f"learner.backend = {wanted}: ") and reason in text
    assert text.endswith(f"allowed on this machine: {allowed}")


def test_what_auto_chooses_may_be_asked_for() -> None:
    everything = [
        machine(),
        machine(can_pin=False),
        *map(machine, [*WITH_GPU, *SLICED.values(), nvidia_smi.DGX]),
    ]
    for found, count in itertools.product(everything, (1, 2)):
        backend, _ = choose_backend(found, "auto", count)
        assert choose_backend(found, backend, count) == (backend, "")


def test_between_slices_gradients_go_through_the_host() -> None:
    assert [choose_reduction("mig", wanted) for wanted in ("auto", "mpr")] == ["mpr", "mpr"]
    for wanted in ("paper", "mrr", "har", "flat"):
        with pytest.raises(
            ExperimentError,
            match=f"learner.reduction = {wanted}: .*NCCL.*; allowed: auto | mpr",
        ):
            choose_reduction("mig", wanted)
    for backend in ("cores", "mps", "none"):
        assert choose_reduction(backend, "har") == "har"


# Each instance's share


def test_cores_are_divided_fairly_once_each_and_neighbours_together() -> None:
    found = Machine(order_cores(range(11), Path("/nonexistent")))
    for count in range(1, 12):
        own = [place.cores for place in places(found, "cores", count)]
        assert [core for cores in own for core in cores] == list(range(11))
        assert max(map(len, own)) - min(map(len, own)) <= 1
    assert all(
        place.device == 0 and place.variables == {"CUDA_VISIBLE_DEVICES": ""}
        for place in places(found, "cores", 3)
    )


def test_an_mps_client_sees_one_gpu_and_has_its_fair_share_of_it() -> None:
    daemon = {"CUDA_MPS_PIPE_DIRECTORY": "/run/pipe", "CUDA_MPS_LOG_DIRECTORY": "/run/log"}
    found = machine(nvidia_smi.A10G_4)
    six = places(found, "mps", 6, daemon)
    assert [place.device for place in six] == [0, 0, 1, 2, 2, 3]
    assert six[0].variables == {
        **daemon,
        "CUDA_VISIBLE_DEVICES": found.gpus[0].uuid,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=11514M",
    }
    assert six[2].variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    assert [place.cores for place in six] == [(0,), (1,), (2, 3), (4,), (5,), (6, 7)]


@pytest.mark.parametrize("count", [1, 3, 7, 192])
def test_no_gpu_is_promised_more_than_it_has_and_none_is_left_idle(count: int) -> None:
    made = places(machine(nvidia_smi.A10G_4), "mps", count)
    assert len(made) == count and len({place.device for place in made}) == min(count, 4)
    sizes = Counter(place.device for place in made)
    assert max(sizes.values()) - min(sizes.values()) <= 1
    for device, uuid in {(place.device, place.variables["CUDA_VISIBLE_DEVICES"]) for place in made}:
        own = [place.variables for place in made if place.device == device]
        assert {one["CUDA_VISIBLE_DEVICES"] for one in own} == {uuid}
        assert 50 < sum(int(one["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) for one in own) <= 100
        assert sum(int(one["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"][2:-1]) for one in own) <= 23028


def test_each_slice_is_one_instances_and_all_gpus_are_used_before_one_is_full() -> None:
    found = machine(dgx(4, 5, 6))
    for count in range(1, 13):
        made = places(found, "mig", count)
        uuids = [place.variables["CUDA_VISIBLE_DEVICES"] for place in made]
        assert len(set(uuids)) == count and all(
            place.variables.keys() == {"CUDA_VISIBLE_DEVICES"} for place in made
        )
        assert all(
            uuid in found.gpus[place.device].slices for uuid, place in zip(uuids, made, strict=True)
        )
        assert [place.device for place in made] == sorted(place.device for place in made), (
            "neighbours together"
        )
        assert len({place.device for place in made}) == min(count, 3)
    assert [place.device for place in places(found, "mig", 6)] == [0, 0, 1, 1, 2, 2]


def test_more_instances_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (43, 43))
    allowed = "open, and here it may have 43; allowed: 1 to 1, or ulimit -n 44"
    with pytest.raises(ExperimentError, match=f"learner.instances = 2: .*{allowed}$"):
        devices.check_room(2)
    pages = {"SC_PHYS_PAGES": 900 * 256, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    with pytest.raises(ExperimentError, match="this machine has 900 MiB; allowed: 1 to 4$"):
        devices.check_room(5)
