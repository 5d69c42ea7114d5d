"""The contract of `runtime.fleet.interfaces.Fleet`, with real processes, the real handler and a real server.

To add a fleet, add a line to KINDS, with the words that differ between fleets. Or write a file that imports these
tests, as for Ray.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import runtime.fleet.aws_lambda
import runtime.fleet.local
from lambda_actor import wire
from runtime.fleet import ACTOR_HANDLER, ACTORS_HANDLER, FleetSetup
from runtime.fleet.local import LocalFleet
from tests.fleet.fleet_actors import GENEROUS_S, STEPS, Actors, Kind, MakeFleet, outcomes_of
from tests.fleet.lambda_fleets import LambdaFleets
from tests.helpers import PATIENCE_S, wait_for


@contextmanager
def local_fleets(folder: Path, together: int = 1) -> Iterator[MakeFleet]:
    with mock.patch.object(runtime.fleet.local, "_LOOK_S", 0.1):
        yield lambda processes, timeout_s: LocalFleet(
            FleetSetup(
                concurrency=processes,
                timeout_s=timeout_s,
                memory_mib=1769,
                log_path=folder / "actors.log",
                function=ACTOR_HANDLER if together == 1 else ACTORS_HANDLER,
                together=together,
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
    "hanging": "timed out after 1 s",
}
LAMBDA_WORDS = {
    "exiting": "exit status 7",
    "killed": "signal: killed",
    "segfaulting": "signal: segmentation fault",
    "hanging": "timed out after 1.00 s",
}
KINDS = {
    "local": Kind(local_fleets, False, LOCAL_WORDS),
    "local, several at once": Kind(partial(local_fleets, together=4), False, LOCAL_WORDS),
    "lambda": Kind(lambda_fleets, True, LAMBDA_WORDS),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def test_many_more_actors_than_fit_at_once_all_come_back_once(actors: Actors, kind: Kind):
    outcomes = actors.run(*["steady"] * 20)
    for outcome in outcomes:
        assert (outcome.status, outcome.error, outcome.was_started) == ("ok", "", True)
        assert 0.0 < outcome.billed_s <= GENEROUS_S and outcome.is_metered == kind.is_metered
        assert (outcome.response["status"], outcome.response["env_steps"]) == ("accepted", STEPS)
    brought = [wire.decode(one, wire.Kind.TRAJECTORY) for one in actors.trajectories().values()]
    assert sorted(int(one["slot"]) for one in brought) == list(range(20))
    actors.fleet.abandon([outcomes[0].invocation_id, "nobody"])
    assert actors.fleet.wait(0.0) == []


def test_an_actor_that_raises_or_dies_is_named_and_costs_its_own_trajectory_only(
    actors: Actors, kind: Kind
):
    raising = {
        "raising": "raised RuntimeError: broken joint 17, in /",
        "exiting_politely": "raised SystemExit: enough, in /",
    }
    dying = {name: kind.words[name] for name in ("exiting", "killed", "segfaulting")}
    words = raising | dying
    first, *outcomes, last = actors.run("steady", *words, "steady")
    for name, outcome in zip(words, outcomes, strict=True):
        assert outcome.status == ("error" if name in raising else "crashed")
        assert words[name] in outcome.error
        assert outcome.response is None and 0.0 < outcome.billed_s <= GENEROUS_S
    assert (first.status, last.status, len(actors.trajectories())) == ("ok", "ok", 2)
    assert {outcome.status for outcome in actors.run(*["steady"] * 4)} == {"ok"}


def test_a_hanging_actor_is_ended_after_its_time(fleet_factory, actors_of, kind: Kind):
    actors = actors_of(fleet_factory(1, kind.limit_s))
    started_s = time.monotonic()
    hanging, after = actors.run("hanging", "steady")
    assert time.monotonic() - started_s >= kind.limit_s
    assert (hanging.status, kind.words["hanging"] in hanging.error) == ("timeout", True)
    assert hanging.billed_s - kind.init_billed_s(hanging) == pytest.approx(kind.limit_s, abs=0.002)
    # A busy machine may need longer than that for one that does not hang.
    wait_for(
        lambda: "ok" in (after.status, actors.run("steady")[0].status),
        "one that is served after it",
    )
    actors.fleet.close()


def test_given_up_actors_end_whether_they_run_or_wait(fleet_factory, actors_of, kind: Kind):
    actors = actors_of(fleet_factory(2))
    running = actors.start_endless(2)
    *waiting, kept = actors.start("steady", "steady", "steady")
    assert actors.fleet.wait(0.0) == []
    actors.give_up([*running, *waiting])
    *ended, served = outcomes_of(actors.fleet, [*running, *waiting, kept])
    assert served.status == "ok" and {one.status for one in ended} == {"abandoned"}
    for one in ended[:2]:
        assert one.was_started and 0.0 < one.billed_s <= GENEROUS_S
        assert one.is_metered == kind.is_metered
    assert not any(one.was_started or one.billed_s for one in ended[2:])
    assert {outcome.status for outcome in actors.run("steady", "steady")} == {"ok"}
    actors.fleet.close()
