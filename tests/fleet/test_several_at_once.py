"""The local fleet when a process serves several invocations at once, and when one process must serve certain ones.

The contract of all fleets also holds then: see tests/fleet/test_fleets.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import runtime.fleet.local
from runtime.fleet import ACTOR_HANDLER, ACTORS_HANDLER, FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.fleet.local import LocalFleet
from runtime.money.work import Outcome
from tests.fleet.fleet_actors import GENEROUS_S, Actors, marks
from tests.fleet_environments import BURNT_CPU_S, DIRECTORY_VARIABLE
from tests.helpers import wait_for

Sent = list[tuple[int, list[str]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Records the invocations that each process, by id, was sent at once."""
    found: Sent = []
    give = runtime.fleet.local._Process.give

    def noted(process: Any, batch: list[Invocation], timeout_s: float) -> None:
        found.append((process.process_id, [one.invocation_id for one in batch]))
        give(process, batch, timeout_s)

    monkeypatch.setattr(runtime.fleet.local._Process, "give", noted)
    return found


@pytest.fixture
def warm_actors(
    actors_of: Callable[..., Actors], sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Actors]]:
    """Returns a function that makes the actors of a fleet whose processes have finished their solo invocations."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    made: list[LocalFleet] = []

    def make(processes: int = 1, *, together: int = 4, timeout_s: float = GENEROUS_S) -> Actors:
        fleet = LocalFleet(
            FleetSetup(
                concurrency=processes,
                timeout_s=timeout_s,
                memory_mib=1769,
                log_path=tmp_path / "actors.log",
                function=ACTORS_HANDLER if together > 1 else ACTOR_HANDLER,
                together=together,
            )
        )
        made.append(fleet)
        actors = actors_of(fleet)
        warm_up(actors)
        sent.clear()
        return actors

    yield make
    for fleet in made:
        fleet.close()


def warm_up(actors: Actors) -> None:
    count = 2 * actors.fleet.concurrency
    events = [actors.event("steady", 10_000 + index) for index in range(count)]
    actors.cache.expect([event["invocation_id"] for event in events])
    actors.fleet.start(
        [
            Invocation(event["invocation_id"], event, process=index // 2)
            for index, event in enumerate(events)
        ]
    )
    actors.outcomes([event["invocation_id"] for event in events])


def statuses(outcomes: Sequence[Outcome]) -> list[str]:
    return [one.status for one in outcomes]


def sizes(sent: Sent) -> list[int]:
    return sorted(len(ids) for _, ids in sent)


def test_a_process_serves_as_many_at_once_as_it_may(warm_actors, sent: Sent):
    actors = warm_actors(together=4)
    assert statuses(actors.run(*["steady"] * 4)) == ["ok"] * 4
    assert sizes(sent) == [4]
    sent.clear()
    assert statuses(actors.run(*["steady"] * 10)) == ["ok"] * 10
    assert sizes(sent) == [2, 4, 4]


@pytest.mark.parametrize(("count", "expected"), [(3, [1, 2]), (7, [3, 4])])
def test_idle_processes_share_evenly(warm_actors, sent: Sent, count: int, expected: list[int]):
    actors = warm_actors(2, together=4)
    assert statuses(actors.run(*["steady"] * count)) == ["ok"] * count
    assert sizes(sent) == expected
    assert len({process for process, _ in sent}) == len(expected)


def test_the_first_two_of_a_process_are_served_alone(actors_of, sent: Sent, tmp_path: Path):
    """The first two make the environment and measure the seconds of a step. A step takes less time in a batch."""
    fleet = LocalFleet(
        FleetSetup(
            concurrency=1,
            timeout_s=GENEROUS_S,
            memory_mib=1769,
            function=ACTORS_HANDLER,
            log_path=tmp_path / "actors.log",
            together=4,
        )
    )
    outcomes = actors_of(fleet).run(*["steady"] * 5)
    fleet.close()
    assert [len(ids) for _, ids in sent] == [1, 1, 3]
    assert [one.cpu_s > 0.0 for one in outcomes] == [False, True, False, False, False]


def test_what_several_bring_is_what_each_brings_alone(warm_actors, sent: Sent):
    brought = []
    for together in (1, 2, 4):
        actors = warm_actors(together=together)
        outcomes = actors.run("steady", "raising", "steady", "steady")
        assert statuses(outcomes) == ["ok", "error", "ok", "ok"]
        assert sizes(sent) == [together] * (4 // together)
        brought.append(actors.trajectories())
    assert brought[0].keys() == {"i0", "i2", "i3"}
    assert brought[0] == brought[1] == brought[2]


def test_an_actor_that_ends_its_process_costs_its_own_trajectory_only(warm_actors, sent: Sent):
    """The others are served again, each alone, and each is billed once."""
    actors = warm_actors()
    before, ending, *after = actors.run("steady", "killed", "steady", "steady")
    assert statuses([before, ending, *after]) == ["ok", "crashed", "ok", "ok"]
    assert "SIGKILL" in ending.error
    assert 0.0 < ending.billed_s <= GENEROUS_S
    assert sizes(sent) == [1, 1, 1, 1, 4]
    assert actors.fleet.wait(0.0) == []


def test_an_actor_that_hangs_is_ended_and_costs_its_own_trajectory_only(warm_actors, sent: Sent):
    actors = warm_actors(together=2)
    hanging, other = actors.run("hanging", "steady", limit_s=1.0)
    assert (hanging.status, other.status) == ("timeout", "ok")
    assert hanging.error == "timed out after 1 s"
    assert hanging.billed_s >= 1.0
    assert sizes(sent) == [1, 1, 2]


@pytest.mark.parametrize(
    ("alone_s", "expected"),
    [
        (GENEROUS_S / 4.2, [2, 2]),
        (GENEROUS_S / 8.5, [4]),
    ],
)
def test_as_many_are_served_at_once_as_end_in_half_of_the_time_limit(
    warm_actors, sent: Sent, alone_s: float, expected: list[int]
):
    """A slow environment gains nothing from batches, and the limit of one invocation ends all of them."""
    actors = warm_actors()
    (process,) = actors.fleet._processes
    process.each_s = alone_s
    assert statuses(actors.run(*["steady"] * 4)) == ["ok"] * 4
    assert sizes(sent) == expected


def test_one_of_several_that_is_given_up_ends_alone(warm_actors):
    actors = warm_actors()
    hanging, *others = actors.start("hanging", "steady", "steady")
    wait_for(lambda: marks("hanging"), "a hanging actor")
    actors.fleet.abandon([hanging])
    found = actors.outcomes([hanging, *others])
    assert found[hanging].status == "abandoned"
    assert found[hanging].was_started
    assert 0.0 < found[hanging].billed_s <= GENEROUS_S
    assert statuses([found[one] for one in others]) == ["ok", "ok"]
    assert actors.fleet.wait(0.0) == []


@pytest.fixture
def batch(
    actors_of, sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Actors]:
    """Actors of two fresh processes that take four invocations at once as one."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    fleet = LocalFleet(
        FleetSetup(
            concurrency=2,
            timeout_s=GENEROUS_S,
            memory_mib=1769,
            function=ACTORS_HANDLER,
            log_path=tmp_path / "actors.log",
            together=4,
        ),
        is_batch=True,
    )
    yield actors_of(fleet)
    fleet.close()


def of_the_first(actors: Actors, *environments: str) -> list[Outcome]:
    """Returns the outcomes of invocations that only the first process may serve."""
    events = [
        actors.event(environment, 500 + index) for index, environment in enumerate(environments)
    ]
    ids = [event["invocation_id"] for event in events]
    actors.cache.expect(ids)
    actors.fleet.start(
        [Invocation(one, event, process=0) for one, event in zip(ids, events, strict=True)]
    )
    found = actors.outcomes(ids)
    return [found[one] for one in ids]


def test_a_batch_is_served_as_a_whole_from_the_first_on(batch: Actors, sent: Sent):
    assert statuses(of_the_first(batch, *["steady"] * 6)) == ["ok"] * 6
    assert [len(ids) for _, ids in sent] == [4, 2]
    sent.clear()
    assert statuses(of_the_first(batch, *["steady"] * 4)) == ["ok"] * 4
    assert sizes(sent) == [4]


def test_a_batch_that_ends_its_process_is_served_once_more_as_a_whole(batch: Actors, sent: Sent):
    assert statuses(of_the_first(batch, "steady", "killed", "steady")) == ["crashed"] * 3
    assert [len(ids) for _, ids in sent] == [3, 3]
    assert batch.fleet.wait(0.0) == []
    assert statuses(of_the_first(batch, "steady", "steady")) == ["ok"] * 2


def test_several_share_the_cpu_seconds_evenly(warm_actors, sent: Sent):
    actors = warm_actors()
    burning, *others = actors.run("burning", "steady", "steady", "steady")
    assert sizes(sent) == [4]
    assert {one.billed_s for one in others} == {burning.billed_s}
    assert BURNT_CPU_S / 4 <= burning.billed_s < BURNT_CPU_S
    assert {one.cpu_s for one in [burning, *others]} == {0.0}


def test_what_one_process_alone_may_serve_holds_up_nobody_else(warm_actors, sent: Sent):
    actors = warm_actors(2, together=1)
    ids = [one.process_id for one in actors.fleet._processes]
    endless = actors.event("napping", 100, fragment_steps=1_000_000)
    pinned = actors.event("steady", 101)
    actors.cache.expect([endless["invocation_id"], pinned["invocation_id"]])
    actors.fleet.start([Invocation(endless["invocation_id"], endless, process=0)])
    wait_for(lambda: marks("napping"), "the first process to be busy")
    actors.fleet.start([Invocation(pinned["invocation_id"], pinned, process=0)])
    assert statuses(actors.run("steady", "steady")) == ["ok", "ok"]
    assert {ids.index(process) for process, _ in sent[1:]} == {1}
    os.kill(ids[0], 9)
    found = actors.outcomes([endless["invocation_id"], pinned["invocation_id"]])
    assert found[endless["invocation_id"]].status == "crashed"
    assert found[pinned["invocation_id"]].status == "ok", "the process that replaces it serves it"
