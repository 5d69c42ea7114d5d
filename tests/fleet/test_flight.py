"""A round's actors, on a fleet and a cache that play a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import CacheUnavailableError
from runtime.errors import ActorsKeepFailingError
from runtime.fleet.actors import Actor, ActorSpec, OpenEpisodeRecord
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures, Patience
from runtime.fleet.flight import GIVE_UP_S, Flight, Group
from runtime.money.model import INIT_SECONDS_MAX
from runtime.money.work import ACTOR, Outcome, Work
from runtime.records.observers import EventLog
from tests.fakes import (
    CRASHED,
    CRASHED_AFTER_SUBMIT,
    DEAF,
    ERROR,
    LATE_COMER,
    NEVER_RETURNS,
    NEVER_STARTED,
    OK,
    SPACES,
    SUBMITS_AND_HANGS,
    TIMEOUT,
    FakeCache,
    FakeFleet,
    ManualClock,
    Play,
    trajectory,
    trajectory_fields,
)
from tests.fleet.parts import (
    EVENT,
    STEPS,
    WEIGHTS_BYTES,
    make_experiment,
    make_meter,
    read_events,
    reserved,
)

LIMIT_S, DEADLINE_S = 60.0, 100.0
TWICE = replace(OK, outcomes=2)
BRINGS = (OK, CRASHED_AFTER_SUBMIT, SUBMITS_AND_HANGS, TWICE)
REPLACED = (ERROR, CRASHED, TIMEOUT)
PLAYS = (*BRINGS, *REPLACED, NEVER_RETURNS, NEVER_STARTED, DEAF, LATE_COMER)


class Round:
    """One collection with all its parts."""

    def __init__(
        self,
        tmp_path: Path,
        script: Any = None,
        *,
        slots: int = 4,
        attempts: int = 3,
        deadline_s: float = DEADLINE_S,
        failures_max: int = 16,
        usd: float = 1000.0,
        at_once: int = 10**9,
        cache: FakeCache | None = None,
        episodes: Sequence[OpenEpisodeRecord] = (),
        **event: Any,
    ) -> None:
        self.events_path = tmp_path / "events.jsonl"
        self.event = {**EVENT, "policy_version": 7, "round_index": 5, **event}
        self.clock, self.cache = ManualClock(), cache or FakeCache()
        self.log = self.cache.log
        self.fleet = FakeFleet(self.cache, self.clock, script, at_once=at_once, log=self.log)
        self.meter = make_meter(make_experiment(budget={"usd": usd}))
        events = EventLog(self.events_path, lambda: "now")
        self.failures = Failures(
            events, OpenEpisodes(events), Patience(attempts=attempts, failures_max=failures_max)
        )
        self.flight = Flight(
            self.fleet,
            self.cache,
            self.meter,
            self.failures,
            events,
            lambda: self.log.append(("ledger", self.meter.reserved_usd)),
            clock=self.clock,
        )
        self.group = Group("r5t0", attempts, self.clock() + deadline_s)
        if not slots:
            return
        assert self.meter.open_round(slots, smallest=1) == slots
        self.flight.start(
            self.group,
            ActorSpec(self.event, SPACES, WEIGHTS_BYTES, LIMIT_S),
            [Work(ACTOR, slot) for slot in range(slots)],
            range(slots),
            episodes,
        )

    def finish(self) -> dict[int, Any]:
        """Waits for all, and returns what came, by slot."""
        self.flight.finish(self.group.until_s, "the round's deadline passed")
        return {int(one["slot"]): one for one in self.group.came}

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.events_path, kind)

    def ids(self, slot: int) -> list[str]:
        return [i.invocation_id for i in self.fleet.started if i.event["slot"] == slot]


def billed_s(play: Play) -> float | None:
    """Seconds of its bill, which is a warm actor's; None if it never began."""
    if play is DEAF:
        return LIMIT_S
    return play.billed_s if play.was_started else None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plays=st.lists(
        st.lists(st.sampled_from(PLAYS), min_size=3, max_size=3), min_size=1, max_size=6
    ),
    attempts=st.integers(1, 3),
    at_once=st.integers(1, 4),
    given_up=st.frozensets(st.integers(0, 5)),
    continued=st.integers(0, 3),
)
def test_whatever_its_actors_do_a_group_ends_with_what_came_and_all_is_settled_once(
    tmp_path: Path,
    plays: list[list[Play]],
    attempts: int,
    at_once: int,
    given_up: frozenset[int],
    continued: int,
) -> None:
    """A round gives nobody up before its deadline; a stream and a pool do, and replace none of these."""
    (tmp_path / "events.jsonl").unlink(missing_ok=True)
    cache = FakeCache()
    episodes = [OpenEpisodeRecord(f"4-{slot}", b"e" * slot) for slot in range(continued)]

    def script(event: Mapping[str, Any], nth: int) -> Play:
        if event["episode_id"]:
            assert cache.fetch_episode(event["episode_id"]) == b"e" * event["slot"]
        return plays[event["slot"]][nth]

    round_ = Round(
        tmp_path,
        slots=len(plays),
        attempts=attempts,
        failures_max=100,
        at_once=at_once,
        episodes=episodes,
        script=script,
        cache=cache,
    )
    began_s = round_.clock()
    stale = [actor for actor in round_.flight.awaited if actor.work.slot in given_up]
    round_.flight.give_up(stale, "too stale")
    assert not [actor for actor in stale if actor in round_.flight.awaited]
    came = round_.finish()
    played = {}
    for slot, tries in enumerate(plays):
        for attempt, play in enumerate(tries[:attempts]):
            played[slot, attempt] = play
            if play not in REPLACED or slot in given_up:
                break
    brought = {key for key, play in played.items() if play in BRINGS}
    assert set(came) == {slot for slot, _ in brought}
    events = {
        (one.event["slot"], int(one.invocation_id[-1])): one.event for one in round_.fleet.started
    }
    assert len(events) == len(round_.fleet.started) == len(played)
    for key in brought:
        for name, array in trajectory_fields(events[key]).items():
            assert np.array_equal(came[key[0]][name], array), name
    tally = round_.group.tally
    assert tally.failed == len(played) - len(brought)
    assert tally.late == sum(play is LATE_COMER for play in played.values())
    billed = {key: seconds for key, play in played.items() if (seconds := billed_s(play))}
    assert sorted(tally.billed_s) == sorted(billed.values())
    assert tally.lost_steps == STEPS * len(billed.keys() - brought)
    answers = {key: len(trajectory(events[key])) if key in brought else 0 for key in billed}
    assert round_.meter.answers_bytes == answers
    moved = {(slot, attempt): bytes_ for slot, attempt, _, bytes_ in round_.meter.ended}
    assert len(moved) == len(round_.meter.ended)
    for slot, attempt, outcome, _ in round_.meter.ended:
        # Its cold start is billed as well, if it can have had one.
        assert played[slot, attempt] is not DEAF or outcome.init_s == INIT_SECONDS_MAX
    assert moved == {
        key: WEIGHTS_BYTES + sent + (key[0] if key[0] < continued else 0)
        for key, sent in answers.items()
    }
    assert reserved(round_.meter) == {"round"} and not (round_.cache.doors or round_.cache.episodes)
    in_a_row = {
        slot: attempts
        for slot, tries in enumerate(plays)
        if slot not in given_up and all(play in REPLACED for play in tries[:attempts])
    }
    assert round_.flight.attempts == in_a_row
    failed = {key for key, play in played.items() if play in REPLACED and key[0] not in given_up}
    assert {(one["slot"], one["attempt"]) for one in round_.events("actor_failed")} == failed
    # An actor that the fleet cannot kill asks the cache whether it may continue.
    for index, (what, ids) in enumerate(round_.log):
        assert what != "abandon" or set(ids) <= {one for _, one in round_.log[:index]}
    if not stale:
        waits = any(play.status is None for play in played.values())
        waited_s = (DEADLINE_S if waits else 0.0) + (GIVE_UP_S if DEAF in played.values() else 0.0)
        assert round_.clock() - began_s == pytest.approx(waited_s)


def test_a_failed_actor_is_replaced_by_one_that_is_asked_for_the_same(tmp_path: Path):
    """Its worst case is on disk before it starts, so a kill between the two cannot hide what it cost."""
    round_ = Round(tmp_path, {(0, 0): ERROR}, slots=1)
    before_usd = round_.meter.reserved_usd
    round_.finish()
    steps = [entry for entry in round_.log if entry[0] in ("start", "ledger")]
    assert steps == [("start", (0,)), ("ledger", pytest.approx(before_usd)), ("start", (0,))]
    first, second = (dict(one.event) for one in round_.fleet.started)
    assert first | {"invocation_id": ""} == second | {"invocation_id": ""}
    json.dumps(first, allow_nan=False)
    assert [one["error"] for one in round_.events("actor_failed")] == [ERROR.error]
    assert [one["attempt"] for one in round_.events("actor_replaced")] == [1]


class _Unreachable(FakeCache):
    """A cache that disappears after the start."""

    def take(self, invocation_id: str) -> bytes | None:
        raise CacheUnavailableError("the server does not answer")


def test_where_the_cache_is_gone_all_are_still_given_up_and_settled_at_what_they_ran(
    tmp_path: Path,
):
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (3, 0): NEVER_RETURNS}, cache=_Unreachable())
    round_.flight.end("the run ends")
    assert round_.fleet.running == {} and reserved(round_.meter) == {"round"}
    assert [outcome.billed_s for _, _, outcome, _ in round_.meter.ended] == [1.0] * 4


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]


BAD_TRAJECTORIES: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "CorruptedMessageError": lambda event: flipped(trajectory(event), 90),
    "policy_version is 6": lambda event: trajectory(event, policy_version=np.int64(6)),
    "r1t0-0-0": lambda event: trajectory(event, invocation_id=wire.text_field("r1t0-0-0")),
    "1-1": lambda event: trajectory(event, continued_episode=wire.text_field("1-1")),
    "steps is 3, requested was 4": lambda event: trajectory(event | {"fragment_steps": STEPS - 1}),
}


@pytest.mark.parametrize("words", BAD_TRAJECTORIES)
def test_a_trajectory_that_cannot_be_used_counts_as_failed_and_is_replaced(
    tmp_path: Path, words: str
):
    round_ = Round(tmp_path, {(1, 0): Play("ok", BAD_TRAJECTORIES[words])})
    came = round_.finish()
    assert wire.field_text(came[1]["invocation_id"]) == round_.ids(1)[1]
    (failed,) = round_.events("actor_failed")
    assert words in failed["error"]
    assert round_.group.tally.failed == 1 and len(round_.group.tally.billed_s) == 5


@pytest.mark.parametrize(("steps", "is_used"), [(STEPS - 1, True), (0, False)])
def test_an_actor_that_dropped_its_last_episode_brings_fewer_steps_but_some(
    tmp_path: Path, steps: int, is_used: bool
):
    play = Play("ok", lambda event: trajectory(event | {"fragment_steps": steps}))
    round_ = Round(tmp_path, {(1, 0): play}, drop_unfinished=True)
    assert len(round_.finish()[1]["rewards"]) == (steps if is_used else STEPS)


def test_a_failure_after_the_deadline_is_not_replaced(tmp_path: Path):
    round_ = Round(tmp_path, {(0, 0): ERROR}, slots=1)
    round_.clock.advance(DEADLINE_S)
    assert round_.flight.next(0.0)
    assert len(round_.events("actor_failed")) == len(round_.ids(0)) == 1


# Failures


def test_a_breaker_trips_at_its_limit_with_the_last_reason_and_a_success_starts_again(
    tmp_path: Path,
):
    failures = Round(tmp_path, slots=0, failures_max=3).failures
    actor = Actor("i", ActorSpec(EVENT, SPACES, WEIGHTS_BYTES, 60.0), Work(ACTOR, 0), 0)
    for words in ("one", "two"):
        for _ in range(2):
            failures.failed(actor, Outcome("i", "crashed"), words)
        failures.succeeded(actor)
    for _ in range(2):
        failures.failed(actor, Outcome("i", "crashed"), "two")
    with pytest.raises(ActorsKeepFailingError, match="3 actors in a row.*three"):
        failures.failed(actor, Outcome("i", "crashed"), "three")


@pytest.mark.parametrize(
    ("status", "error_type", "is_its_own"),
    [
        ("error", "ValueError", True),
        ("error", "CacheMissError", False),
        ("error", "CacheUnavailableError", False),
        ("crashed", "", False),
    ],
)
def test_an_episode_is_dropped_if_its_continuations_raise_but_not_for_trouble_that_passes(
    tmp_path: Path, status: Any, error_type: str, is_its_own: bool
):
    round_ = Round(tmp_path, slots=0, failures_max=100, attempts=2)
    spec = ActorSpec(EVENT, SPACES, WEIGHTS_BYTES, 60.0)
    actor = Actor("i", spec, Work(ACTOR, 0), 0, OpenEpisodeRecord("4-0", b"e"))
    for _ in range(2):
        round_.failures.begin()
        for _ in range(2):
            round_.failures.failed(actor, Outcome("i", status, error_type=error_type), "why")
        assert round_.failures.has_raising_slot == is_its_own
    assert [one["episode_id"] for one in round_.events("episode_dropped")] == ["4-0"] * is_its_own


def test_when_the_breaker_trips_all_else_is_still_settled(tmp_path: Path):
    # In descending order, 7 to 5 fail and trip it. The others are successes, failures and one that runs on.
    words = Play("error", None, "KeyError: 'knee'")
    plays = {(7, 0): ERROR, (6, 0): CRASHED, (5, 0): words, (3, 0): TIMEOUT, (2, 0): NEVER_RETURNS}
    round_ = Round(tmp_path, plays, slots=8, failures_max=3, attempts=1, at_once=1)
    with pytest.raises(ActorsKeepFailingError, match="KeyError: 'knee'"):
        round_.finish()
    round_.flight.end("the run ends")
    assert reserved(round_.meter) == {"round"}
    billed = [(slot, outcome.billed_s) for slot, _, outcome, _ in round_.meter.ended]
    assert sorted(billed) == [(slot, 60.0 if slot == 3 else 1.0) for slot in range(8)]


# Money


def test_a_replacement_that_the_budget_cannot_hold_is_refused_and_recorded(tmp_path: Path):
    probe = make_meter(make_experiment())
    probe.open_round(3, smallest=3)
    # Enough for the round, but not to replace the cost of one failure: its worst case.
    worst = Play("timeout", None, "timed out", billed_s=70.0, init_s=10.0, is_metered=True)
    round_ = Round(tmp_path, {(1, 0): worst}, slots=3, usd=probe.budget.reserved_usd * 1.0000001)
    assert sorted(round_.finish()) == [0, 2]
    (refused,) = round_.events("replacement_refused")
    assert (refused["slot"], "budget" in refused["reason"]) == (1, True)
    assert len(round_.ids(1)) == 1 and round_.events("actor_replaced") == []
    assert reserved(round_.meter) == {"round"} and round_.meter.budget.free_usd >= 0
