"""The contract of `runtime.fleet.interfaces.Fleet`, with real processes, the real handler and a real server.

To add a fleet, add a line to KINDS, with the words that differ between fleets. Or write a file that imports these
tests, as for Ray.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

import runtime.fleet.aws_lambda
from lambda_actor import wire
from runtime.fleet import ACTORS_HANDLER, FleetSetup
from runtime.fleet.local import LocalFleet
from tests.fleet.fleet_actors import GENEROUS_S, STEPS, Actors, Kind, MakeFleet, weights
from tests.fleet.lambda_fleets import LambdaFleets
from tests.helpers import PATIENCE_S, wait_for


@contextmanager
def local_fleets(folder: Path) -> Iterator[MakeFleet]:
    yield lambda processes, timeout_s: LocalFleet(
        FleetSetup(
            concurrency=processes,
            timeout_s=timeout_s,
            memory_mib=1769,
            log_path=folder / "actors.log",
        )
    )


@contextmanager
def local_fleets_of_several(folder: Path) -> Iterator[MakeFleet]:
    yield lambda processes, timeout_s: LocalFleet(
        FleetSetup(
            concurrency=processes,
            timeout_s=timeout_s,
            memory_mib=1769,
            log_path=folder / "actors.log",
            function=ACTORS_HANDLER,
            together=4,
        )
    )


@contextmanager
def lambda_fleets(folder: Path) -> Iterator[MakeFleet]:
    # A machine that is slow to end an abandoned actor must not fail a test of its bill.
    with (
        LambdaFleets() as fleets,
        mock.patch.object(runtime.fleet.aws_lambda, "ABANDON_GRACE_S", PATIENCE_S),
    ):
        yield lambda processes, timeout_s: fleets.make(processes, timeout_s=timeout_s)


LOCAL_WORDS = {
    "exiting": "code 7",
    "killed": "SIGKILL",
    "segfaulting": "SIGSEGV",
    "hanging": "timed out after 3 s",
}
KINDS = {
    "local": Kind(local_fleets, False, LOCAL_WORDS),
    "local, several at once": Kind(local_fleets_of_several, False, LOCAL_WORDS),
    "lambda": Kind(
        lambda_fleets,
        True,
        {
            "exiting": "exit status 7",
            "killed": "signal: killed",
            "segfaulting": "signal: segmentation fault",
            "hanging": "timed out after 3.00 s",
        },
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_many_more_actors_than_fit_at_once_all_come_back_once(actors: Actors, kind: Kind):
    outcomes = actors.run(*["steady"] * 40)
    for outcome in outcomes:
        assert (outcome.status, outcome.error, outcome.was_started) == ("ok", "", True)
        assert 0.0 < outcome.billed_s <= GENEROUS_S and outcome.is_metered == kind.is_metered
        assert outcome.response["invocation_id"] == outcome.invocation_id
        assert (outcome.response["status"], outcome.response["env_steps"]) == ("accepted", STEPS)
    brought = [wire.decode(one, wire.Kind.TRAJECTORY) for one in actors.trajectories().values()]
    assert sorted(int(one["slot"]) for one in brought) == list(range(40))
    assert {one["rewards"].shape for one in brought} == {(STEPS,)}
    actors.fleet.abandon([outcomes[0].invocation_id, "nobody"])
    assert actors.fleet.wait(0.0) == []


def test_a_raising_environment_costs_its_own_trajectory_only(actors: Actors):
    before, raising, leaving, after = actors.run("steady", "raising", "exiting_politely", "steady")
    assert (before.status, after.status) == ("ok", "ok")
    for outcome, words in ((raising, "RuntimeError: broken joint 17"), (leaving, "SystemExit")):
        assert outcome.status == "error"
        assert f"raised {words}" in outcome.error and ", in /" in outcome.error
        assert outcome.response is None
        assert outcome.billed_s > 0.0
    assert len(actors.trajectories()) == 2


def test_an_actor_that_dies_is_named_and_costs_its_own_trajectory_only(actors: Actors, kind: Kind):
    names = ["steady", "exiting", "steady", "killed", "steady", "segfaulting", "steady"]
    found = dict(zip(names, actors.run(*names), strict=False))
    assert found["steady"].status == "ok"
    for name in ("exiting", "killed", "segfaulting"):
        outcome = found[name]
        assert outcome.status == "crashed"
        assert kind.words[name] in outcome.error
        assert outcome.response is None
        assert 0.0 < outcome.billed_s <= GENEROUS_S
    assert len(actors.trajectories()) == 4
    assert {outcome.status for outcome in actors.run(*["steady"] * 4)} == {"ok"}


def test_a_hanging_actor_is_ended_after_its_time(fleet_factory, actors_of, kind: Kind):
    fleet = fleet_factory(1, 3.0)
    actors = actors_of(fleet)
    started_s = time.monotonic()
    hanging, after = actors.run("hanging", "steady")
    assert time.monotonic() - started_s >= 3.0
    assert hanging.status == "timeout"
    assert kind.words["hanging"] in hanging.error
    assert hanging.billed_s - kind.init_billed_s(hanging) == pytest.approx(3.0, abs=0.002)
    # A busy machine may need longer than that for one that does not hang.
    wait_for(
        lambda: "ok" in (after.status, actors.run("steady")[0].status),
        "one that is served after it",
    )
    fleet.close()


def test_given_up_actors_end_whether_they_run_or_wait(fleet_factory, actors_of, kind: Kind):
    actors = actors_of(fleet_factory(2))
    running = actors.start_endless(2)
    *waiting, kept = actors.start("steady", "steady", "steady")
    assert actors.fleet.wait(0.0) == []
    actors.give_up([*running, *waiting])
    found = actors.outcomes([*running, *waiting, kept])
    assert found.pop(kept).status == "ok"
    assert {outcome.status for outcome in found.values()} == {"abandoned"}
    assert all(
        found[one].was_started and 0.0 < found[one].billed_s <= GENEROUS_S for one in running
    )
    assert all(found[one].is_metered == kind.is_metered for one in running)
    assert not any(found[one].was_started or found[one].billed_s for one in waiting)
    assert {outcome.status for outcome in actors.run("steady", "steady")} == {"ok"}
    actors.fleet.close()


def test_trajectories_do_not_depend_on_how_many_actors_run_at_once(fleet_factory, actors_of):
    """Trajectories are equal byte for byte, including a continued episode."""
    brought: list[dict[str, bytes]] = []
    for processes in (1, 3):
        fleet = fleet_factory(processes)
        actors = actors_of(fleet)
        assert {o.status for o in actors.run(*["steady", "raising"] * 5)} == {"ok", "error"}
        first = actors.trajectories()
        open_episode = wire.decode(first["i0"], wire.Kind.TRAJECTORY)["open_episode"].tobytes()
        actors.cache.publish_episodes({"1-0": open_episode})
        assert {o.status for o in actors.run(*["steady"] * 3, round_index=2, episode_id="1-0")} == {
            "ok"
        }
        hopper = actors_of(fleet, weights(11, 3))
        assert {o.status for o in hopper.run(*["Hopper-v5"] * 4)} == {"ok"}
        brought.append(
            first
            | actors.trajectories()
            | {f"hopper {key}": data for key, data in hopper.trajectories().items()}
        )
        fleet.close()
    assert len(brought[0]) == 12
    assert brought[0] == brought[1]
    assert len(set(brought[0].values())) == 12
