"""The run's own MPS daemon: ready at once, only for the run's instances, and gone with the run, however it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import runtime.gmi.mps
from runtime.gmi.devices import Machine, parse_gpus, places
from runtime.gmi.mps import MpsDaemon, MpsError
from tests.gmi import mps_control, nvidia_smi
from tests.helpers import ROOT, is_alive, wait_for

GPUS = parse_gpus(nvidia_smi.A10G_4)


@pytest.fixture
def run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a short folder, since socket paths must be short; the stand-in is on PATH."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    (folder / "bin").mkdir()
    (folder / "run").mkdir()
    mps_control.install(folder / "bin")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    yield folder / "run"
    shutil.rmtree(folder)


@pytest.fixture
def daemon(run_directory: Path) -> Iterator[MpsDaemon]:
    daemon = MpsDaemon(run_directory, GPUS)
    yield daemon
    daemon.close()


def pipes_of(daemon: MpsDaemon) -> Path:
    return Path(daemon.variables["CUDA_MPS_PIPE_DIRECTORY"])


def process_of(pipes: Path) -> int:
    return int((pipes / "nvidia-cuda-mps-control.pid").read_text())


def test_every_instance_is_let_in_with_the_variables_of_its_place(daemon: MpsDaemon) -> None:
    for place in places(Machine(tuple(range(8)), GPUS, has_mps=True), "mps", 6, daemon.variables):
        mps_control.connect(dict(place.variables))


def test_limits_in_the_runs_own_environment_do_not_reach_the_daemon(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M")
    daemon = MpsDaemon(run_directory, GPUS)
    try:
        mps_control.connect({**daemon.variables, "CUDA_VISIBLE_DEVICES": GPUS[0].uuid})
    finally:
        daemon.close()


def test_closing_ends_daemon_and_server_and_keeps_the_logs(
    daemon: MpsDaemon, run_directory: Path
) -> None:
    pipes = pipes_of(daemon)
    assert pipes.parent == run_directory and pipes.stat().st_mode & 0o077 == 0
    processes = [
        process_of(pipes),
        mps_control.connect({**daemon.variables, "CUDA_VISIBLE_DEVICES": GPUS[0].uuid}),
    ]
    assert all(map(is_alive, processes))
    for _ in range(2):
        daemon.close()
        assert not daemon.is_alive
        assert not any(map(is_alive, processes)), "a server ends only by `quit`"
    assert [path.name for path in run_directory.iterdir()] == ["mps"]


OWNER = """
import sys
from pathlib import Path
from runtime.gmi.mps import MpsDaemon
from tests.gmi.test_mps import GPUS
daemon = MpsDaemon(Path(sys.argv[1]), GPUS)
print(daemon.variables["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
input()
"""


def test_it_ends_with_its_killed_run_and_its_server_with_it(run_directory: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(run_directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        pipes = owner.stdout.readline().strip()
        variables = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_VISIBLE_DEVICES": GPUS[1].uuid}
        processes = [process_of(Path(pipes)), mps_control.connect(variables)]
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        wait_for(
            lambda: not any(map(is_alive, processes)), "daemon and server to end with their run"
        )
        wait_for(lambda: not Path(pipes).exists(), "its pipes to be removed")
    finally:
        owner.kill()
        owner.communicate()


def test_a_daemon_that_does_not_heed_quit_is_killed(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.gmi.mps, "_FAREWELL", "false")
    daemon = MpsDaemon(run_directory, GPUS)
    process = process_of(pipes_of(daemon))
    daemon.close()
    wait_for(lambda: not is_alive(process), "it to be killed")


def test_a_program_that_is_missing_is_an_error_of_one_line(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_directory.parent / "bin" / mps_control.NAME).unlink()
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(":")[2])
    with pytest.raises(MpsError, match="nvidia-cuda-mps-control does not start") as error:
        MpsDaemon(run_directory, GPUS)
    assert "\n" not in str(error.value)
    assert [path.name for path in run_directory.iterdir()] == ["mps"]


def test_pipes_go_to_a_shorter_directory_where_a_sockets_path_would_be_too_long(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = run_directory / ("d" * 120)
    monkeypatch.setattr(tempfile, "tempdir", str(run_directory / "short"))
    (run_directory / "short").mkdir()
    daemon = MpsDaemon(deep, GPUS)
    try:
        assert pipes_of(daemon).parent == run_directory / "short"
        assert daemon.variables["CUDA_MPS_LOG_DIRECTORY"] == str(deep / "mps")
        mps_control.connect({**daemon.variables, "CUDA_VISIBLE_DEVICES": GPUS[0].uuid})
    finally:
        daemon.close()
