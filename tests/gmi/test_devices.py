"""A machine's devices and each instance's share of them, from recorded answers of nvidia-smi."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from runtime.errors import ExperimentError
from runtime.gmi.devices import Machine, choose_backend, look, parse_gpus, places
from tests.gmi import nvidia_smi
from tests.gmi.nvidia_smi import install

CORES = tuple(range(8))


def machine(listing: str = "", *, has_mps: bool = True) -> Machine:
    return Machine(CORES, parse_gpus(listing), has_mps=has_mps)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns a folder that is the entire PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def test_gpus_and_their_slices_are_read(path: Path) -> None:
    assert look({}).gpus == ()
    install(path, nvidia_smi.DGX)
    found = look({})
    assert [len(gpu.slices) for gpu in found.gpus] == [0, 0, 0, 0, 7, 3, 2, 4]
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert found.gpus[5].uuid == "GPU-4fb17cd5-cad8-31a6-34d3-08434d926140"
    assert (found.problem, found.has_mps) == ("", True)
    assert set(found.cores) == os.sched_getaffinity(0)
    assert look({}, has_gpus=False).gpus == ()


@pytest.mark.parametrize(
    ("listing", "code", "said"),
    [(nvidia_smi.FAILED, 9, "couldn't communicate with the NVIDIA driver"), ("", 1, "exit code 1")],
)
def test_a_driver_that_fails_is_no_gpu_and_says_why(
    path: Path, listing: str, code: int, said: str
) -> None:
    install(path, listing, code=code)
    found = look({})
    assert found.gpus == ()
    assert said in found.problem
    assert found.problem.startswith("nvidia-smi: ") and "\n" not in found.problem


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
    assert ([gpu.index for gpu in found.gpus], len(found.slices)) == (gpus, slices)


# Choice of backend


@pytest.mark.parametrize(
    ("found", "chosen", "remark"),
    [
        (machine(nvidia_smi.A10G_4), "mps", ""),
        (machine(nvidia_smi.DGX), "mps", ""),
        (
            machine(nvidia_smi.A100_PCIE),
            "mig",
            "not mps: all GPUs are sliced, so that a process has a slice alone",
        ),
        (
            machine(nvidia_smi.T4, has_mps=False),
            "none",
            "not mps: nvidia-cuda-mps-control is not on PATH; "
            "not mig: 3 instances, and 0 existing MIG slices; none is made",
        ),
        (machine(), "cores", ""),
    ],
)
def test_auto_takes_the_first_that_is_possible_which_may_also_be_named(
    found: Machine, chosen: str, remark: str
) -> None:
    assert choose_backend(found, "auto", 3) == (chosen, remark)
    assert choose_backend(found, chosen, 3) == (chosen, "")


@pytest.mark.parametrize(
    ("wanted", "found", "reason", "allowed"),
    [
        ("mps", machine(), "there is no GPU", "cores | none"),
        ("mig", machine(), "there is no GPU", "cores | none"),
        ("mps", machine(nvidia_smi.T4, has_mps=False), "control is not on PATH", "cores | none"),
        ("mig", machine(nvidia_smi.T4), "0 existing MIG slices", "cores | mps | none"),
        ("none", machine(nvidia_smi.A100_PCIE), "all GPUs are sliced", "cores"),
        ("auto", machine(nvidia_smi.A100_PCIE), "4 instances, and 3 existing", "cores"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason_and_what_is(
    wanted: str, found: Machine, reason: str, allowed: str
) -> None:
    with pytest.raises(ExperimentError) as error:
        choose_backend(found, wanted, 4)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"learner.backend = {wanted}: ") and reason in text
    assert text.endswith(f"allowed on this machine: {allowed}")


# Each instance's share


def test_cores_are_divided_fairly_once_each_and_neighbours_together() -> None:
    found = Machine(tuple(range(11)))
    for count in range(1, 12):
        made = places(found, "cores", count)
        assert [core for place in made for core in place.cores] == list(range(11))
        sizes = [len(place.cores) for place in made]
        assert max(sizes) - min(sizes) <= 1
        assert {place.device for place in made} == {0}
        assert all(place.variables == {"CUDA_VISIBLE_DEVICES": ""} for place in made)
    assert all(len(place.cores) == 1 for place in places(found, "cores", 20))
    assert {place.cores for place in places(found, "none", 2)} == {()}


@pytest.mark.parametrize("count", [1, 3, 6, 7, 192])
def test_an_mps_client_sees_one_gpu_and_has_its_fair_share_of_it(count: int) -> None:
    found = machine(nvidia_smi.A10G_4)
    daemon = {"CUDA_MPS_PIPE_DIRECTORY": "/run/pipe"}
    made = places(found, "mps", count, daemon)
    sizes = Counter(place.device for place in made)
    assert list(sizes) == list(range(min(count, 4))), "none is idle"
    assert max(sizes.values()) - min(sizes.values()) <= 1
    for place in made:
        assert place.variables == {
            **daemon,
            "CUDA_VISIBLE_DEVICES": found.gpus[place.device].uuid,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{100 // sizes[place.device]}",
        }
        assert place.cores


def test_each_slice_is_one_instances_and_gradients_pass_between_them_through_the_host() -> None:
    found = machine(nvidia_smi.DGX)
    for count in range(1, 17):
        made = places(found, "mig", count)
        uuids = [place.variables["CUDA_VISIBLE_DEVICES"] for place in made]
        assert uuids == list(found.slices[:count])
        assert {place.device for place in made} == {0}, "so that only mpr is possible"
