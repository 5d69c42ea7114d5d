"""The local fleet beyond the contract of tests/fleet/test_fleets.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import runtime.fleet.local
import runtime.fleet.processes
from runtime.errors import FleetError
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.fleet.local import LocalFleet
from runtime.money.work import Outcome
from tests.fleet.fleet_actors import GENEROUS_S, marks
from tests.fleet_environments import BURNT_CPU_S, DIRECTORY_VARIABLE
from tests.helpers import PATIENCE_S, ROOT, is_alive, wait_for


@pytest.fixture
def local_fleet(tmp_path: Path) -> Iterator[Callable[..., LocalFleet]]:
    made: list[LocalFleet] = []

    def make(
        processes: int = 1, *, timeout_s: float = GENEROUS_S, memory_mib: int = 1769, **more: Any
    ) -> LocalFleet:
        made.append(
            LocalFleet(
                FleetSetup(
                    concurrency=processes,
                    timeout_s=timeout_s,
                    memory_mib=memory_mib,
                    log_path=tmp_path / "actors.log",
                    **more,
                )
            )
        )
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def processes(folder: Path) -> list[int]:
    """Returns the ids of live actor processes that write to this folder's log."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(entry / "fd" / "1") == str(folder / "actors.log"):
                found.append(int(entry.name))
    return sorted(found)


def gone(process_ids: Sequence[int]) -> bool:
    return not any(is_alive(one) for one in process_ids)


def test_no_process_survives_close(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = local_fleet(3)
    assert len(set(processes(tmp_path))) == 3
    actors_of(fleet).start("hanging", "hanging_in_c")
    wait_for(lambda: marks("hanging") and marks("hanging_in_c"), "two hanging actors")
    process_ids = processes(tmp_path)
    fleet.close()
    assert gone(process_ids)


def test_given_up_actors_are_killed_even_where_they_hang_with_what_they_started(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    actors = actors_of(local_fleet(2))
    hanging = actors.start("hanging_in_c", "hanging_with_a_program")
    wait_for(lambda: marks("child") and marks("hanging_in_c"), "two hanging actors")
    actors.fleet.abandon(hanging)
    found = actors.outcomes(hanging)
    assert {outcome.status for outcome in found.values()} == {"abandoned"}
    assert all(outcome.was_started and outcome.billed_s > 0.0 for outcome in found.values())
    (child,) = (int(mark.rpartition("-")[2]) for mark in marks("child"))
    wait_for(lambda: not is_alive(child), "the program to end")
    assert {outcome.status for outcome in actors.run("steady", "steady")} == {"ok"}


def test_billed_is_the_cpu_time_at_the_share_of_a_vcpu(local_fleet, actors_of, tmp_path: Path):
    actors = actors_of(local_fleet(memory_mib=442))
    burning, napping, after = actors.run("burning", "napping", "steady")
    assert burning.billed_s >= BURNT_CPU_S * 1769 / 442
    assert napping.status == after.status == "ok"
    assert napping.billed_s < burning.billed_s
    assert burning.init_s > 0.0 and not burning.is_metered


def test_a_second_waited_is_a_second_billed_at_any_share(local_fleet):
    fleet = local_fleet(
        memory_mib=442, timeout_s=1000.0, function="tests.fleet_environments:waiting"
    )
    fleet.start([Invocation("a", {"invocation_id": "a"})])
    found: list[Outcome] = []
    wait_for(lambda: found.extend(fleet.wait(1.0)) or found, "the answer")
    assert found[0].waited_s == 100.0
    assert 100.0 < found[0].billed_s < 110.0


def test_a_bill_ends_at_the_time_out(local_fleet, actors_of):
    # 0.2 CPU-seconds at the smallest memory are 2.8 s, and the time-out counts real seconds.
    actors = actors_of(local_fleet(memory_mib=128, timeout_s=2.5))
    (outcome,) = actors.run("burning")
    assert outcome.billed_s == 2.5


def test_processes_stay_warm_and_dead_ones_are_replaced(local_fleet, actors_of, tmp_path: Path):
    fleet = local_fleet(2)
    actors = actors_of(fleet)
    before = processes(tmp_path)
    assert {o.status for o in actors.run(*["steady"] * 6, "raising")} == {"ok", "error"}
    assert processes(tmp_path) == before
    assert actors.run("exiting")[0].status == "crashed"
    assert actors.run("steady")[0].status == "ok"
    after = processes(tmp_path)
    assert len(set(before) & set(after)) == 1
    assert all(is_alive(one) for one in after)


def test_interrupts_from_the_terminal_are_the_learners_alone(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")
    (process_id,) = processes(tmp_path)
    os.kill(process_id, signal.SIGINT)
    (napping,) = actors.start("napping")
    wait_for(lambda: marks("napping"), "an actor in the middle of its rollout")
    os.kill(process_id, signal.SIGINT)
    assert actors.outcomes([napping])[napping].status == "ok"
    assert actors.run("steady")[0].status == "ok"
    assert processes(tmp_path) == [process_id]


def test_a_process_that_dies_idle_is_replaced(local_fleet, actors_of, tmp_path: Path):
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")
    (process_id,) = processes(tmp_path)
    os.kill(process_id, signal.SIGKILL)
    wait_for(lambda: not is_alive(process_id), "the process to end")
    first, second = actors.run("steady", "steady")
    assert (first.status, second.status) == ("ok", "ok")
    assert first.replaced_process == "its process ended with SIGKILL"
    assert second.replaced_process == ""
    assert processes(tmp_path) != [process_id]


def test_a_process_that_stops_reading_holds_up_nobody_else(local_fleet, actors_of, tmp_path: Path):
    """The fleet's caller is not held up either: without a cache, an event exceeds a socket's buffer."""
    fleet = local_fleet(2)
    actors = actors_of(fleet)
    # A process that is still starting would receive no event.
    wait_for(
        lambda: (
            all(one.init_cpu_s is not None for one in fleet._processes) or not actors.run("steady")
        ),
        "both processes",
    )
    stopped = fleet._processes[0].process_id
    os.kill(stopped, signal.SIGSTOP)
    # The first free process takes the first one.
    ids = actors.start("steady", "steady", "steady", limit_s=3.0, weights="x" * 3_000_000)
    found = actors.outcomes(ids)
    assert [found[one].status for one in ids] == ["timeout", "ok", "ok"]
    assert gone([stopped])


def test_the_log_has_an_end_and_says_so_once_a_session(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtime.fleet.local, "LOG_BYTES_MAX", 50_000)
    for session in (1, 2):
        fleet = local_fleet(1)
        actors_of(fleet).run("printing_much", "printing_much")
        fleet.close()
        log = (tmp_path / "actors.log").read_text()
        assert log.count("[more was printed, and is left out]\n") == session
        assert 50_000 * session < len(log) < 51_000 * session


def test_what_actors_print_is_in_the_log(local_fleet, actors_of, tmp_path: Path):
    actors = actors_of(local_fleet(1))
    actors.run("talking", "raising")
    log = (tmp_path / "actors.log").read_bytes()
    assert b"printed by the environment" in log
    assert b"complained by the environment" in log
    assert b"Traceback" in log
    assert b"broken joint 17" in log


def test_credentials_reach_the_actors_and_nobody_else(local_fleet, actors_of):
    actors = actors_of(local_fleet(credentials={"FLEET_SECRET": "tooth-brush"}))
    (outcome,) = actors.run("telling")
    assert "raised RuntimeError: the secret is tooth-brush, in " in outcome.error
    assert "FLEET_SECRET" not in os.environ


USER_MODULE = """
from tests.fleet_environments import Steady

def make():
    return Steady()
"""


def test_a_users_modules_are_found_in_the_working_directory_and_on_the_path(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder, module in (("here", "in_working_directory"), ("there", "on_path")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    outcomes = actors_of(local_fleet(1)).run("in_working_directory:make", "on_path:make")
    assert [outcome.error for outcome in outcomes] == ["", ""]


def test_actors_that_cannot_start_are_errors_and_not_an_endless_loop(
    local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('half an installation')")
    monkeypatch.chdir(tmp_path)
    outcomes = actors_of(local_fleet(1)).run("steady", "steady")
    for outcome in outcomes:
        assert outcome.status == "error"
        assert "does not start: ImportError: half an installation" in outcome.error
        assert outcome.billed_s == 0.0


def test_a_fleet_that_can_start_no_process_any_more_says_so(
    local_fleet, actors_of, monkeypatch: pytest.MonkeyPatch
):
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(runtime.fleet.processes.socket, "socketpair", refuse)
    actors.start("exiting")
    with pytest.raises(FleetError, match="Too many open files"):
        for _ in range(int(PATIENCE_S)):
            fleet.wait(1.0)
    monkeypatch.undo()
    fleet.close()


PARENT = """
import json, os, sys, time
from pathlib import Path
from runtime.fleet import FleetSetup
from runtime.fleet.local import LocalFleet
from runtime.fleet.interfaces import Invocation

folder, events = Path(sys.argv[1]), json.loads(sys.argv[2])
fleet = LocalFleet(FleetSetup(
    concurrency=len(events) + 1, timeout_s=9000, memory_mib=1769, log_path=folder / "actors.log"))
fleet.start([Invocation(event["invocation_id"], event) for event in events])
while len(list(folder.glob("*-*"))) < len(events):
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(9000)
"""


def test_processes_die_with_a_killed_parent(actors_of, tmp_path: Path):
    """One actor is idle, and the others are in the middle of a rollout."""
    actors = actors_of(None)
    environments = ("hanging", "hanging_in_c")
    events = [actors.event(environment, index) for index, environment in enumerate(environments)]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path), json.dumps(events)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, DIRECTORY_VARIABLE: str(tmp_path)},
    )
    process_ids: list[int] = []
    try:
        assert parent.stdout.readline() == b"ready\n"
        process_ids = processes(tmp_path)
        assert len(process_ids) == len(environments) + 1
        assert all(is_alive(one) for one in process_ids)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_for(lambda: gone(process_ids), "the processes to end")
    finally:
        parent.kill()
        parent.communicate()
        for one in process_ids:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
