"""What every fleet must do, and what the local one does besides.

The first part is the contract of `runtime.interfaces.Fleet`, with real processes, the real handler and a real server;
a further fleet joins by a line in FLEETS.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime.fleet.local
from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from runtime.errors import FleetError
from runtime.fleet.local import LocalFleet
from runtime.interfaces import Fleet, Invocation, Outcome
from tests.fleet_environments import ACTION_SIZE, BURNT_CPU_S, DIRECTORY_VARIABLE, OBSERVATION_SIZE
from tests.helpers import PATIENCE_S, ROOT, is_alive, wait_for

STEPS = 16
MODULE = "tests.fleet_environments"
GENEROUS_S = 60.0


def weights(observation_size: int = OBSERVATION_SIZE, action_size: int = ACTION_SIZE) -> bytes:
    stream = np.random.default_rng(7)
    sizes = [observation_size, 8, 8, action_size]
    layers = {}
    for i in range(3):
        layers[f"weight_{i}"] = stream.standard_normal((sizes[i + 1], sizes[i])).astype(np.float32) / 3
        layers[f"bias_{i}"] = stream.standard_normal(sizes[i + 1]).astype(np.float32)
    return wire.encode(wire.Kind.GAUSSIAN_WEIGHTS, {
        "policy_version": np.int64(1), **layers, "log_std": np.zeros(action_size, np.float32),
        "observation_mean": np.zeros(observation_size, np.float32),
        "observation_std": np.ones(observation_size, np.float32), "observation_clip": np.float32(10.0)})


class Actors:
    """The learner's side: asks a fleet for actors, and takes in what they bring."""

    def __init__(self, fleet: Fleet, server_url: str, policy: bytes | None = None) -> None:
        self.fleet, self._url, self.run_id = fleet, server_url, uuid.uuid4().hex
        self.cache = TrajectoryCache(server_url, self.run_id)
        self.cache.publish_weights(1, policy or weights())
        self._count = 0

    def event(self, environment: str, index: int, **changed: Any) -> dict[str, Any]:
        is_ours = not set(environment) & set(":-")
        return {"run_id": self.run_id, "invocation_id": f"i{index}", "cache_url": self._url, "cache_ttl_s": 600,
                "cache_bytes_max": 2**24, "truncate_at_fragment": False, "fragment_steps": STEPS, "policy_version": 1,
                "environment_id": f"{MODULE}:{environment}" if is_ours else environment,
                "seed": 5, "round_index": 1, "slot": index, "episode_id": "", **changed}

    def start(self, *environments: str, **changed: Any) -> list[str]:
        """Starts one actor in each; returns their ids."""
        invocations = []
        for environment in environments:
            event = self.event(environment, self._count, **changed)
            invocations.append(Invocation(event["invocation_id"], event))
            self._count += 1
        ids = [invocation.invocation_id for invocation in invocations]
        self.cache.expect(ids)
        self.fleet.start(invocations)
        return ids

    def outcomes(self, ids: Iterable[str]) -> dict[str, Outcome]:
        """Waits for exactly these."""
        missing, found = set(ids), {}
        deadline = time.monotonic() + PATIENCE_S
        while missing:
            assert time.monotonic() < deadline, f"waited in vain for {missing}"
            for outcome in self.fleet.wait(1.0):
                assert outcome.invocation_id in missing, f"{outcome} was not asked for, or comes twice"
                missing.remove(outcome.invocation_id)
                found[outcome.invocation_id] = outcome
        return found

    def run(self, *environments: str, **changed: Any) -> list[Outcome]:
        ids = self.start(*environments, **changed)
        found = self.outcomes(ids)
        return [found[one] for one in ids]

    def trajectories(self, count: int) -> dict[str, bytes]:
        taken = [self.cache.take(PATIENCE_S) for _ in range(count)]
        return dict(taken)

    def close(self) -> None:
        self.cache.remove_run()
        self.cache.close()


def make_local_fleet(folder: Path, processes: int, timeout_s: float) -> Fleet:
    return LocalFleet(processes, timeout_s=timeout_s, memory_mib=1769, log_path=folder / "actors.log")


FLEETS: dict[str, Callable[[Path, int, float], Fleet]] = {"local": make_local_fleet}


@pytest.fixture(scope="module", params=FLEETS)
def fleet_factory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """Makes a fleet with room for so many actors at once, each ended after ``timeout_s``."""
    made: list[Fleet] = []
    os.environ[DIRECTORY_VARIABLE] = str(tmp_path_factory.mktemp("marks"))

    def make(processes: int = 2, timeout_s: float = GENEROUS_S) -> Fleet:
        made.append(FLEETS[request.param](tmp_path_factory.mktemp("fleet"), processes, timeout_s))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()
    del os.environ[DIRECTORY_VARIABLE]


@pytest.fixture(scope="module")
def shared_fleet(fleet_factory) -> Fleet:
    """One fleet of two for all tests that leave it usable."""
    return fleet_factory(2)


@pytest.fixture
def actors(shared_fleet: Fleet, server_url: str) -> Iterator[Actors]:
    actors = Actors(shared_fleet, server_url)
    yield actors
    actors.close()


@pytest.fixture
def actors_of(server_url: str) -> Iterator[Callable[..., Actors]]:
    made: list[Actors] = []

    def make(fleet: Fleet, policy: bytes | None = None) -> Actors:
        made.append(Actors(fleet, server_url, policy))
        return made[-1]

    yield make
    for actors in made:
        actors.close()


def marks(name: str) -> set[str]:
    return {path.name for path in Path(os.environ[DIRECTORY_VARIABLE]).glob(f"{name}-*")}


# The contract


def test_an_actor_that_behaves(actors: Actors):
    (outcome,) = actors.run("steady")
    assert outcome.status == "ok"
    assert outcome.error == ""
    assert outcome.was_started
    assert 0.0 < outcome.billed_s <= GENEROUS_S
    assert outcome.init_s > 0.0
    assert outcome.response["invocation_id"] == outcome.invocation_id
    assert outcome.response["status"] == "accepted"
    assert outcome.response["env_steps"] == STEPS
    (data,) = actors.trajectories(1).values()
    trajectory = wire.decode(data, wire.Kind.TRAJECTORY)
    assert wire.field_text(trajectory["invocation_id"]) == outcome.invocation_id
    assert trajectory["rewards"].shape == (STEPS,)


def test_many_more_actors_than_fit_at_once_all_come_back_once(actors: Actors):
    outcomes = actors.run(*["steady"] * 40)
    assert {outcome.status for outcome in outcomes} == {"ok"}
    slots = sorted(int(wire.decode(data, wire.Kind.TRAJECTORY)["slot"]) for data in actors.trajectories(40).values())
    assert slots == list(range(40))
    assert actors.fleet.wait(0.0) == []


def test_waiting_for_nothing_ends(actors: Actors):
    assert actors.fleet.wait(0.0) == []
    assert actors.fleet.wait(0.01) == []


def test_starting_nothing_and_giving_up_the_unknown_do_no_harm(actors: Actors):
    actors.fleet.start([])
    actors.fleet.abandon([])
    actors.fleet.abandon(["nobody"])
    assert actors.run("steady")[0].status == "ok"


def test_a_raising_environment_costs_its_own_trajectory_only(actors: Actors):
    before, raising, after = actors.run("steady", "raising", "steady")
    assert (before.status, raising.status, after.status) == ("ok", "error", "ok")
    assert raising.error == "RuntimeError: broken joint 17"
    assert raising.response is None
    assert raising.billed_s > 0.0
    assert len(actors.trajectories(2)) == 2


@pytest.mark.parametrize(("changed", "words"), [
    ({"environment_id": "No-Such-v0"}, "UnusableEnvironmentError"),
    ({"environment_id": "no_such_module:make"}, "no_such_module"),
    ({"fragment_steps": 0}, "fragment_steps"),
    ({"policy_version": 99}, "weights:99"),
    ({"episode_id": "never"}, "episode:never"),
    ({"slot": "3"}, "'slot'"),
])
def test_what_the_handler_refuses_comes_back_in_words(actors: Actors, changed: dict[str, Any], words: str):
    (refused,) = actors.run("steady", **changed)
    assert refused.status == "error"
    assert words in refused.error
    assert actors.run("steady")[0].status == "ok"


def test_an_actor_that_calls_exit_is_an_error(actors: Actors):
    (outcome,) = actors.run("exiting_politely")
    assert (outcome.status, outcome.error) == ("error", "SystemExit: enough")


def test_an_actor_that_dies_is_named_and_costs_its_own_trajectory_only(actors: Actors):
    names = ["steady", "exiting", "steady", "killed", "steady", "segfaulting", "steady"]
    found = dict(zip(names, actors.run(*names), strict=False))
    assert found["steady"].status == "ok"
    for name, words in (("exiting", "code 7"), ("killed", "SIGKILL"), ("segfaulting", "SIGSEGV")):
        outcome = found[name]
        assert outcome.status == "crashed"
        assert words in outcome.error
        assert outcome.response is None
        assert 0.0 < outcome.billed_s <= GENEROUS_S
    assert len(actors.trajectories(4)) == 4
    assert {outcome.status for outcome in actors.run(*["steady"] * 4)} == {"ok"}


def test_a_hanging_actor_is_ended_after_its_time(fleet_factory, actors_of):
    fleet = fleet_factory(1, 3.0)
    actors = actors_of(fleet)
    started_s = time.monotonic()
    hanging, after = actors.run("hanging", "steady")
    assert time.monotonic() - started_s >= 3.0
    assert hanging.status == "timeout"
    assert "3 s" in hanging.error
    assert hanging.billed_s == 3.0
    assert after.status == "ok"
    fleet.close()


def test_given_up_actors_end_whether_they_run_or_wait(fleet_factory, actors_of):
    actors = actors_of(fleet_factory(2))
    before = marks("hanging") | marks("hanging_in_c")
    running = actors.start("hanging", "hanging_in_c")
    wait_for(lambda: len((marks("hanging") | marks("hanging_in_c")) - before) == 2, "two hanging actors")
    waiting = actors.start("steady", "steady", "steady")
    assert actors.fleet.wait(0.0) == []
    actors.fleet.abandon([*running, *waiting])
    found = actors.outcomes([*running, *waiting])
    assert {outcome.status for outcome in found.values()} == {"abandoned"}
    assert all(found[one].was_started and found[one].billed_s > 0.0 for one in running)
    assert not any(found[one].was_started or found[one].billed_s for one in waiting)
    assert {outcome.status for outcome in actors.run("steady", "steady")} == {"ok"}
    actors.fleet.close()


def test_giving_up_what_has_ended_changes_nothing(actors: Actors):
    (first,) = actors.run("steady")
    actors.fleet.abandon([first.invocation_id])
    assert actors.run("steady")[0].status == "ok"
    assert actors.fleet.wait(0.0) == []


def test_only_what_was_given_up_ends(fleet_factory, actors_of):
    actors = actors_of(fleet_factory(1))
    before = marks("hanging")
    (running,) = actors.start("hanging")
    wait_for(lambda: marks("hanging") - before, "a hanging actor")
    first, second = actors.start("steady", "steady")
    actors.fleet.abandon([first, running])
    found = actors.outcomes([running, first, second])
    assert {one: outcome.status for one, outcome in found.items()} == {
        running: "abandoned", first: "abandoned", second: "ok"}
    actors.fleet.close()


def test_what_an_environment_prints_disturbs_nothing(actors: Actors):
    assert [outcome.status for outcome in actors.run("talking", "steady", "talking")] == ["ok"] * 3


def test_trajectories_do_not_depend_on_how_many_actors_run_at_once(fleet_factory, actors_of):
    """Byte for byte, a continued episode included."""
    brought: list[dict[str, bytes]] = []
    for processes in (1, 3):
        fleet = fleet_factory(processes)
        actors = actors_of(fleet)
        assert {o.status for o in actors.run(*["steady", "raising"] * 5)} == {"ok", "error"}
        first = actors.trajectories(5)
        open_episode = wire.decode(first["i0"], wire.Kind.TRAJECTORY)["open_episode"].tobytes()
        actors.cache.publish_episodes({"1-0": open_episode})
        assert {o.status for o in actors.run(*["steady"] * 3, round_index=2, episode_id="1-0")} == {"ok"}
        hopper = actors_of(fleet, weights(11, 3))
        assert {o.status for o in hopper.run(*["Hopper-v5"] * 4)} == {"ok"}
        brought.append(first | actors.trajectories(3) | {
            f"hopper {key}": data for key, data in hopper.trajectories(4).items()})
        fleet.close()
    assert len(brought[0]) == 12
    assert brought[0] == brought[1]
    assert len(set(brought[0].values())) == 12


def test_closing_twice_and_while_actors_run_does_no_harm(fleet_factory, actors_of):
    fleet = fleet_factory(1)
    actors = actors_of(fleet)
    before = marks("hanging")
    actors.start("hanging", "steady")
    wait_for(lambda: marks("hanging") - before, "a hanging actor")
    fleet.close()
    fleet.close()


# The local fleet


@pytest.fixture
def local_fleet(tmp_path: Path) -> Iterator[Callable[..., LocalFleet]]:
    made: list[LocalFleet] = []

    def make(processes: int = 1, *, timeout_s: float = GENEROUS_S, memory_mib: int = 1769, **more: Any) -> LocalFleet:
        made.append(LocalFleet(processes, timeout_s=timeout_s, memory_mib=memory_mib, log_path=tmp_path / "actors.log",
                               **more))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def gone(process_ids: Sequence[int]) -> bool:
    return not any(is_alive(one) for one in process_ids)


def test_no_process_survives_close(local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = local_fleet(3)
    assert len(set(fleet.process_ids())) == 3
    actors_of(fleet).start("hanging", "hanging_in_c")
    wait_for(lambda: marks("hanging") and marks("hanging_in_c"), "two hanging actors")
    process_ids = fleet.process_ids()
    fleet.close()
    assert gone(process_ids)


def test_close_does_not_wait_for_processes_that_are_not_ready_yet(local_fleet):
    fleet = local_fleet(2)
    process_ids = fleet.process_ids()
    fleet.close()
    assert gone(process_ids)


def test_billed_is_the_cpu_time_at_the_share_of_a_vcpu(local_fleet, actors_of, tmp_path: Path):
    actors = actors_of(local_fleet(memory_mib=442))
    burning, napping, after = actors.run("burning", "napping", "steady")
    assert burning.billed_s >= BURNT_CPU_S * 1769 / 442
    # Napping takes no CPU time, and is not paid here.
    assert napping.status == after.status == "ok"
    assert napping.billed_s < burning.billed_s


def test_a_bill_ends_at_the_time_out(local_fleet, actors_of):
    # 0.2 CPU-seconds at the smallest memory are 2.8 s, and the time-out counts real seconds.
    actors = actors_of(local_fleet(memory_mib=128, timeout_s=2.5))
    (outcome,) = actors.run("burning")
    assert outcome.billed_s == 2.5


def test_processes_stay_warm_and_dead_ones_are_replaced(local_fleet, actors_of):
    fleet = local_fleet(2)
    actors = actors_of(fleet)
    before = fleet.process_ids()
    assert {o.status for o in actors.run(*["steady"] * 6, "raising")} == {"ok", "error"}
    assert fleet.process_ids() == before
    assert actors.run("exiting")[0].status == "crashed"
    assert actors.run("steady")[0].status == "ok"
    after = fleet.process_ids()
    assert len(set(before) & set(after)) == 1
    assert all(is_alive(one) for one in after)


def test_interrupts_from_the_terminal_are_the_learners_alone(
        local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")
    (process_id,) = fleet.process_ids()
    os.kill(process_id, signal.SIGINT)
    (napping,) = actors.start("napping")
    wait_for(lambda: marks("napping"), "an actor in the middle of its rollout")
    os.kill(process_id, signal.SIGINT)
    assert actors.outcomes([napping])[napping].status == "ok"
    assert actors.run("steady")[0].status == "ok"
    assert fleet.process_ids() == [process_id]


def test_a_process_that_dies_idle_is_replaced(local_fleet, actors_of):
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")
    (process_id,) = fleet.process_ids()
    os.kill(process_id, signal.SIGKILL)
    # The first may have been handed to the dead one; it is told so, and the next is served.
    first, second = actors.run("steady", "steady")
    assert first.status in ("ok", "crashed")
    assert second.status == "ok"
    assert fleet.process_ids() != [process_id]


def test_a_process_that_is_killed_from_outside_in_the_middle_of_a_rollout(
        local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    (hanging,) = actors.start("hanging")
    wait_for(lambda: marks("hanging"), "an actor in the middle of its rollout")
    os.kill(fleet.process_ids()[0], signal.SIGTERM)
    outcome = actors.outcomes([hanging])[hanging]
    assert outcome.status == "crashed"
    assert "SIGTERM" in outcome.error
    assert actors.run("steady")[0].status == "ok"


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
    assert outcome.error == "RuntimeError: the secret is tooth-brush"
    assert "FLEET_SECRET" not in os.environ


USER_MODULE = """
from tests.fleet_environments import Steady

def make():
    return Steady()
"""


def test_a_users_modules_are_found_in_the_working_directory_and_on_the_path(
        local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder, module in (("here", "in_working_directory"), ("there", "on_path")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "there"))
    outcomes = actors_of(local_fleet(1)).run("in_working_directory:make", "on_path:make")
    assert [outcome.error for outcome in outcomes] == ["", ""]


def test_actors_that_cannot_start_are_errors_and_not_an_endless_loop(
        local_fleet, actors_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('half an installation')")
    monkeypatch.chdir(tmp_path)
    outcomes = actors_of(local_fleet(1)).run("steady", "steady")
    for outcome in outcomes:
        assert outcome.status == "error"
        assert "does not start: ImportError: half an installation" in outcome.error
        assert outcome.billed_s == 0.0


def test_a_fleet_that_can_start_no_process_any_more_says_so(
        local_fleet, actors_of, monkeypatch: pytest.MonkeyPatch):
    fleet = local_fleet(1)
    actors = actors_of(fleet)
    actors.run("steady")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(runtime.fleet.local.socket, "socketpair", refuse)
    actors.start("exiting")
    with pytest.raises(FleetError, match="Too many open files"):
        for _ in range(int(PATIENCE_S)):
            fleet.wait(1.0)
    monkeypatch.undo()
    fleet.close()


PARENT = """
import json, os, sys, time
from pathlib import Path
from runtime.fleet.local import LocalFleet
from runtime.interfaces import Invocation

folder, events = Path(sys.argv[1]), json.loads(sys.argv[2])
fleet = LocalFleet(len(events) + 1, timeout_s=600, memory_mib=1769, log_path=folder / "actors.log")
fleet.start([Invocation(event["invocation_id"], event) for event in events])
while len(list(folder.glob("*-*"))) < len(events):
    time.sleep(0.01)
print(json.dumps(fleet.process_ids()), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("environments", [["hanging"], ["hanging_in_c"]], ids=["idle and hanging", "holding the lock"])
def test_processes_die_with_a_killed_parent(environments: list[str], actors_of, tmp_path: Path):
    """One of them idle, the others in the middle of a rollout."""
    actors = actors_of(None)
    events = [actors.event(environment, index) for index, environment in enumerate(environments)]
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path), json.dumps(events)], stdout=subprocess.PIPE,
        cwd=ROOT, env={**os.environ, DIRECTORY_VARIABLE: str(tmp_path)})
    process_ids: list[int] = []
    try:
        process_ids = json.loads(parent.stdout.readline())
        assert len(process_ids) == len(environments) + 1
        assert all(is_alive(one) for one in process_ids)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        deadline_s = time.monotonic() + 20.0
        while not gone(process_ids) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert [one for one in process_ids if is_alive(one)] == []
    finally:
        parent.kill()
        parent.communicate()
        for one in process_ids:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
