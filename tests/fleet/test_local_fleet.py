"""The local fleet beyond the contract of tests/fleet/test_fleets.py: bills, batches, replaced processes, their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import runtime.fleet.local
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.fleet.local import LocalFleet
from runtime.money.work import Outcome
from tests.fleet.fleet_actors import outcomes_of
from tests.fleet.scripted import BURNT_CPU_S
from tests.helpers import PATIENCE_S, ROOT, is_alive, wait_for

HANDLER = "tests.fleet.scripted:handler"


class Player:
    """Starts invocations on a fleet, and waits for their outcomes."""

    def __init__(self, fleet: LocalFleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self._count = 0

    def start(
        self, *acts: str, process: int | None = None, limit_s: float | None = None, **fields: Any
    ) -> list[str]:
        names = [f"i{self._count + index}" for index in range(len(acts))]
        self._count += len(acts)
        self.fleet.start(
            [
                Invocation(
                    name,
                    {"do": act, "name": name, "folder": str(self.folder), **fields},
                    process,
                    limit_s if name == names[0] else None,
                )
                for name, act in zip(names, acts, strict=True)
            ]
        )
        return names

    def play(self, *acts: str, **fields: Any) -> list[Outcome]:
        return outcomes_of(self.fleet, self.start(*acts, **fields))

    def begun(self, act: str, count: int = 1) -> list[int]:
        """Waits until this many have begun an act; returns their process ids."""
        wait_for(lambda: len([*self.folder.glob(f"{act}-*")]) >= count, act)
        return [int(path.name.split("-")[1]) for path in self.folder.glob(f"{act}-*")]

    def warm_up(self) -> None:
        """Lets each process serve the two that it serves alone."""
        for process in range(self.fleet.concurrency):
            self.play("nothing", "nothing", process=process)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Player]]:
    """Returns a function that makes the player of a fleet with so many processes."""
    made: list[LocalFleet] = []
    monkeypatch.setattr(runtime.fleet.local, "_LOOK_S", 0.1)

    def player(processes: int = 1, *, together: int = 1, **setup: Any) -> Player:
        function = HANDLER if together == 1 else f"{HANDLER}_together"
        setup = {"timeout_s": float(PATIENCE_S), "memory_mib": 1769, "function": function} | setup
        found = FleetSetup(
            concurrency=processes, log_path=tmp_path / "actors.log", together=together, **setup
        )
        made.append(LocalFleet(found))
        (tmp_path / f"marks{len(made)}").mkdir()
        return Player(made[-1], tmp_path / f"marks{len(made)}")

    yield player
    for fleet in made:
        fleet.close()


def processes(folder: Path) -> list[int]:
    """Returns the ids of live processes that write to this folder's log, without their guards, which lead sessions."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            process_id = int(entry.name)
            writes = os.readlink(entry / "fd" / "1") == str(folder / "actors.log")
            if writes and os.getsid(process_id) != process_id:
                found.append(process_id)
    return sorted(found)


def kill(process_id: int) -> None:
    """Kills a process; its guard remains to be waited for."""
    guard = os.getsid(process_id)
    os.kill(process_id, signal.SIGKILL)
    ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_for(lambda: os.waitid(os.P_PID, guard, ended), "the process to end")


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [one.status for one in outcomes]


def batches(outcomes: Sequence[Outcome]) -> list[int]:
    """Returns the sizes of the batches in which these were served."""
    return sorted(len(one) for one in {tuple(one.response["together"]) for one in outcomes})


def test_billed_are_cpu_seconds_at_the_share_of_a_vcpu_and_waits_up_to_the_time_out(make):
    player = make(memory_mib=442, timeout_s=105.0)
    first, burning, waiting = player.play("nothing", "burn", "wait")
    assert burning.billed_s >= BURNT_CPU_S * 1769 / 442 > 4 * first.billed_s
    assert (first.cpu_s, burning.cpu_s > 0.0, first.init_s > 0.0) == (0.0, True, True)
    assert waiting.waited_s == 100.0 < waiting.billed_s <= 105.0
    assert player.play("wait long")[0].billed_s == 105.0


# Several at once


@pytest.mark.parametrize(
    ("count", "most", "invocations", "expected"),
    [(1, 4, 10, [2, 4, 4]), (2, 4, 3, [1, 2]), (1, 1, 2, [1, 1])],
)
def test_free_processes_share_evenly_as_many_as_each_may_serve(
    make, count: int, most: int, invocations: int, expected: list[int]
):
    player = make(count, together=most)
    player.warm_up()
    assert batches(player.play(*["nothing"] * invocations)) == expected


def test_the_first_two_of_a_process_are_served_alone_to_make_and_to_time_the_environment(make):
    outcomes = make(together=4).play(*["nothing"] * 5)
    assert batches(outcomes) == [1, 1, 3]
    assert [one.cpu_s > 0.0 for one in outcomes] == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("act", "limit_s", "status", "words"),
    [("die", None, "crashed", "SIGKILL"), ("hang", 0.5, "timeout", "after 0.5 s")],
)
def test_of_several_at_once_one_that_ends_its_process_costs_its_own_trajectory_only(
    make, act: str, limit_s: float | None, status: str, words: str
):
    """The others are served again, each alone, and each is billed once."""
    player = make(together=5)
    player.warm_up()
    ending, *others = player.play(act, *["nothing"] * 4, limit_s=limit_s)
    assert (ending.status, words in ending.error) == (status, True)
    assert ending.billed_s >= (limit_s or 0.0)
    assert statuses(others) == ["ok"] * 4 and batches(others) == [1] * 4
    assert player.fleet.wait(0.0) == []


# Processes


def test_one_that_hangs_or_stops_reading_holds_up_nobody_else(make):
    """The fleet's caller is not held up either: without a cache, an event exceeds a socket's buffer."""
    player = make(2)
    (hanging,) = player.start("hang", process=0)
    (busy,) = player.begun("hang")
    (pinned,) = player.start("nothing", process=0)
    assert {one.response["process"] for one in player.play("nothing", "nothing")}.isdisjoint({busy})
    os.kill(busy, signal.SIGKILL)
    crashed, served = outcomes_of(player.fleet, [hanging, pinned])
    assert statuses([crashed, served]) == ["crashed", "ok"]
    os.kill(served.response["process"], signal.SIGSTOP)
    big = {"weights": "x" * 3_000_000}
    outcomes = player.play("nothing", "nothing", "nothing", limit_s=0.5, **big)
    assert statuses(outcomes) == ["timeout", "ok", "ok"]
    assert not is_alive(served.response["process"])


def test_a_process_outlives_interrupts_and_if_it_dies_idle_its_successor_serves(
    make, tmp_path: Path
):
    """Interrupts from the terminal are the learner's alone."""
    player = make()
    ids = player.start("nap")
    (process_id,) = player.begun("nap")
    os.kill(process_id, signal.SIGINT)
    assert statuses(outcomes_of(player.fleet, ids)) == ["ok"]
    assert processes(tmp_path) == [process_id]
    kill(process_id)
    first, second = player.play("nothing", "nothing")
    assert statuses([first, second]) == ["ok", "ok"]


def test_what_starts_while_a_successor_begins_is_served_by_it(
    make, monkeypatch: pytest.MonkeyPatch
):
    player = make()
    ids = player.start("nap")
    (process_id,) = player.begun("nap")
    outcomes_of(player.fleet, ids)
    kill(process_id)
    begins, may_begin, popen = threading.Event(), threading.Event(), subprocess.Popen

    def late(*arguments: Any, **options: Any) -> Any:
        begins.set()
        may_begin.wait(PATIENCE_S)
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    ids = player.start("nothing")
    assert begins.wait(PATIENCE_S)
    ids += player.start("nothing")
    may_begin.set()
    assert statuses(outcomes_of(player.fleet, ids)) == ["ok", "ok"]


def test_one_given_up_before_its_process_has_read_it_is_not_played_by_the_successor(make):
    player = make()
    player.play("nothing")
    interval_s = sys.getswitchinterval()
    # The process's thread does not run between the two calls.
    sys.setswitchinterval(PATIENCE_S)
    try:
        ids = player.start("nothing")
        player.fleet.abandon(ids)
    finally:
        sys.setswitchinterval(interval_s)
    assert statuses(outcomes_of(player.fleet, ids)) == ["abandoned"]


def test_given_up_ones_and_those_of_a_closed_fleet_are_killed_with_what_they_started(
    make, tmp_path: Path
):
    player = make(3)
    ids = player.start("hang in C", "hang with a program")
    player.begun("hang in C")
    player.begun("hang with a program")
    begun = processes(tmp_path)
    wait_for(lambda: len(processes(tmp_path)) == 4, "three processes and a program")
    player.fleet.abandon(ids)
    ended = outcomes_of(player.fleet, ids)
    assert {(one.status, one.was_started) for one in ended} == {("abandoned", True)}
    wait_for(lambda: len(set(processes(tmp_path)) - set(begun)) == 2, "two others in their place")
    player.start("hang")
    player.begun("hang")
    player.fleet.close()
    assert processes(tmp_path) == []


def test_what_they_print_is_in_the_log_of_every_session_and_their_credentials_are_theirs_alone(
    make, tmp_path: Path
):
    for session in (1, 2):
        player = make(credentials={"FLEET_SECRET": "tooth-brush"})
        player.play("print")
        player.fleet.close()
        assert (tmp_path / "actors.log").read_text() == "tooth-brush\n" * session
    assert "FLEET_SECRET" not in os.environ


def test_modules_are_found_in_the_working_directory_and_on_the_path_and_one_that_is_not_is_an_error(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        text = "from tests.fleet.scripted import handler\n"
        (tmp_path / folder / f"{folder}_module.py").write_text(text)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    for folder in ("here", "there"):
        assert statuses(make(function=f"{folder}_module:handler").play("nothing")) == ["ok"]
    for outcome in make(function="no_such_module:handler").play("nothing", "nothing"):
        assert (outcome.status, outcome.billed_s) == ("error", 0.0)
        assert "its process does not start: " in outcome.error
        assert "no_such_module" in outcome.error


PARENT = """
import sys, time
from pathlib import Path
from runtime.fleet import FleetSetup
from runtime.fleet.local import LocalFleet
from runtime.fleet.interfaces import Invocation

folder = Path(sys.argv[1])
fleet = LocalFleet(FleetSetup(concurrency=3, timeout_s=9000, memory_mib=1769,
    log_path=folder / "actors.log", function="tests.fleet.scripted:handler"))
fleet.start([Invocation(do, {"do": do, "name": do, "folder": str(folder)}) for do in ("hang", "hang in C")])
while len(list(folder.glob("hang*"))) < 2:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(9000)
"""


def test_processes_die_with_a_killed_parent(tmp_path: Path):
    """One actor is idle, and the others are in the middle of a rollout."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    found: list[int] = []
    try:
        assert parent.stdout.readline() == b"ready\n"
        wait_for(lambda: len(processes(tmp_path)) == 3, "three processes")
        found = processes(tmp_path)
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, found)), "the processes to end")
    finally:
        parent.kill()
        parent.communicate()
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
