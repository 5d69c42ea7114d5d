"""A round's actors, and those before the first round, on a fleet and a cache that play a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import CacheUnavailableError
from lambda_actor.spaces import Spaces
from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.fleet.actors import Actor, ActorSpec, OpenEpisodeRecord
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures, Patience
from runtime.fleet.flight import Flight, Group
from runtime.money.work import ACTOR, Outcome, Work
from runtime.records.events import EventLog
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
from tests.helpers import cost_model

LIMIT_S, DEADLINE_S = 60.0, 100.0
TWICE = replace(OK, outcomes=2)
LOST = replace(OK, replaced_process="its process ended with SIGKILL")
BRINGS = (OK, CRASHED_AFTER_SUBMIT, SUBMITS_AND_HANGS, TWICE, LOST)
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
        spaces: Spaces = SPACES,
        episodes: Sequence[OpenEpisodeRecord] = (),
    ) -> None:
        self.events_path = tmp_path / "events.jsonl"
        self.event = {**EVENT, "policy_version": 7, "round_index": 5}
        self.log: list[Any] = []
        self.clock, self.cache = ManualClock(), cache or FakeCache(self.log)
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
            give_up_timeout_s=0.05,
        )
        self.group = Group("r5t0", attempts, self.clock() + deadline_s)
        if not slots:
            return
        assert self.meter.open_round(slots, smallest=1) == slots
        self.flight.start(
            self.group,
            ActorSpec(self.event, spaces, WEIGHTS_BYTES, LIMIT_S),
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
    """Seconds of its bill, which is a warm actor's unless its process was lost; None if it never began."""
    if play is DEAF:
        return LIMIT_S
    return play.billed_s + play.init_s * (play is LOST) if play.was_started else None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plays=st.lists(
        st.lists(st.sampled_from(PLAYS), min_size=3, max_size=3), min_size=1, max_size=6
    ),
    attempts=st.integers(1, 3),
    at_once=st.integers(1, 4),
    given_up=st.frozensets(st.integers(0, 5)),
)
def test_whatever_its_actors_do_a_group_ends_with_what_came_and_all_is_settled_once(
    tmp_path: Path,
    plays: list[list[Play]],
    attempts: int,
    at_once: int,
    given_up: frozenset[int],
) -> None:
    """A round gives nobody up before its deadline; a stream and a pool do, and replace none of these."""
    (tmp_path / "events.jsonl").unlink(missing_ok=True)
    round_ = Round(
        tmp_path,
        lambda event, nth: plays[event["slot"]][nth],
        slots=len(plays),
        attempts=attempts,
        failures_max=100,
        at_once=at_once,
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
    brought = {slot for (slot, _), play in played.items() if play in BRINGS}
    assert set(came) == brought
    for slot, found in came.items():
        last = round_.ids(slot)[-1]
        event = {**round_.event, "slot": slot, "episode_id": "", "invocation_id": last}
        for name, array in trajectory_fields(event).items():
            assert np.array_equal(found[name], array), name
    ids = [one.invocation_id for one in round_.fleet.started]
    assert len(ids) == len(set(ids)) == len(played)
    assert round_.group.tally.failed == len(played) - len(brought)
    assert round_.group.tally.late == sum(play is LATE_COMER for play in played.values())
    billed = {key: seconds for key, play in played.items() if (seconds := billed_s(play))}
    assert sorted(round_.group.tally.billed_s) == sorted(billed.values())
    assert sorted((slot, attempt) for slot, attempt, *_ in round_.meter.ended) == sorted(billed)
    lost = [key for key in billed if played[key] not in BRINGS]
    assert round_.group.tally.lost_steps == STEPS * len(lost)
    sent = {key for key, sent_bytes in round_.meter.answers_bytes.items() if sent_bytes}
    assert sent == {key for key, play in played.items() if play in BRINGS}
    assert reserved(round_.meter) == {"round"} and round_.cache.doors == {}
    lost_ones = [play for play in played.values() if play is LOST]
    assert len(round_.events("actor_process_replaced")) == len(lost_ones)
    failed = {key for key, play in played.items() if play in REPLACED and key[0] not in given_up}
    assert {(one["slot"], one["attempt"]) for one in round_.events("actor_failed")} == failed
    if stale:
        return
    waits = any(play.status is None for play in played.values())
    waited_s = (DEADLINE_S if waits else 0.0) + (0.05 if DEAF in played.values() else 0.0)
    assert round_.clock() - began_s == pytest.approx(waited_s)


def test_a_failed_actor_is_replaced_by_one_that_is_asked_for_the_same(tmp_path: Path):
    """Its worst case is on disk before it starts, so a kill between the two cannot hide what it cost."""
    round_ = Round(tmp_path, {(1, 0): ERROR})
    worst_usd = cost_model(make_experiment()).roles[ACTOR].worst_case_usd()
    before_usd = round_.meter.reserved_usd
    round_.finish()
    steps = [entry for entry in round_.log if entry[0] in ("start", "ledger")]
    assert [what for what, _ in steps] == ["start", "ledger", "start"]
    # By then the failed one, slot 1, is settled, and so are those that ended before it.
    ended = [slot for slot, attempt, *_ in round_.meter.ended if attempt == 0]
    before = ended.index(1) + 1
    assert steps[1][1] == pytest.approx(before_usd + (1 - before) * worst_usd)
    assert steps[2][1] == (1,)
    events = [dict(i.event) for i in round_.fleet.started if i.event["slot"] == 1]
    assert events[0] | {"invocation_id": ""} == events[1] | {"invocation_id": ""}
    for event in events:
        json.dumps(event, allow_nan=False)
    (failed,) = round_.events("actor_failed")
    assert (failed["slot"], failed["attempt"], failed["error"]) == (1, 0, ERROR.error)
    assert [(e["slot"], e["attempt"]) for e in round_.events("actor_replaced")] == [(1, 1)]


def test_the_door_is_closed_before_the_fleet_is_told(tmp_path: Path):
    """An actor that the fleet cannot kill asks the cache whether it may continue."""
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (2, 0): LATE_COMER, (3, 0): DEAF})
    round_.finish()
    given_up = {round_.ids(slot)[0] for slot in (1, 2, 3)}
    told = next(index for index, (what, _) in enumerate(round_.log) if what == "abandon")
    assert set(round_.log[told][1]) == given_up
    assert given_up <= {one for what, one in round_.log[:told] if what == "take"}


class _Unreachable(FakeCache):
    """A cache that disappears after the start."""

    def take(self, invocation_id: str) -> bytes | None:
        raise CacheUnavailableError("the server does not answer")


def test_the_fleet_is_told_even_where_the_cache_is_gone(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (3, 0): NEVER_RETURNS}, cache=_Unreachable())
    with suppress(CacheUnavailableError):
        round_.flight.end("the run ends")
    assert round_.fleet.running == {}


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


def test_a_failure_after_the_deadline_is_not_replaced(tmp_path: Path):
    class Slow(FakeFleet):
        def wait(self, timeout_s: float):
            self._clock.advance(timeout_s + 1.0)
            return super().wait(0.0)

    round_ = Round(tmp_path, {(0, 0): ERROR}, slots=1)
    round_.fleet.__class__ = Slow
    assert round_.finish() == {}
    assert len(round_.events("actor_failed")) == len(round_.ids(0)) == 1
    assert round_.events("actor_replaced") == []


# The circuit breaker


def test_a_breaker_trips_at_its_limit_with_the_last_reason_and_a_success_starts_again(
    tmp_path: Path,
):
    failures = Round(tmp_path, lambda event, nth: OK, failures_max=3).failures
    actor = Actor("i", ActorSpec(EVENT, SPACES, WEIGHTS_BYTES, 60.0), Work(ACTOR, 0), 0)
    for _ in range(2):
        for _ in range(2):
            failures.failed(actor, Outcome("i", "crashed"), "one")
        failures.succeeded(actor)
    for _ in range(2):
        failures.failed(actor, Outcome("i", "crashed"), "two")
    with pytest.raises(ActorsKeepFailingError, match="3 actors in a row.*three"):
        failures.failed(actor, Outcome("i", "crashed"), "three")


def test_when_the_breaker_trips_all_else_is_still_settled(tmp_path: Path):
    # In descending order, 7 to 5 fail and trip it. The others are successes, failures and one that runs on.
    plays = {
        (7, 0): ERROR,
        (6, 0): CRASHED,
        (5, 0): Play("error", None, "KeyError: 'knee'"),
        (3, 0): TIMEOUT,
        (2, 0): NEVER_RETURNS,
    }
    round_ = Round(tmp_path, plays, slots=8, failures_max=3, attempts=1, at_once=1)
    with pytest.raises(ActorsKeepFailingError, match="KeyError: 'knee'"):
        round_.finish()
    round_.flight.end("the run ends")
    assert reserved(round_.meter) == {"round"}
    assert sorted((slot, attempt) for slot, attempt, *_ in round_.meter.ended) == [
        (slot, 0) for slot in range(8)
    ]
    billed = {slot: outcome.billed_s for slot, _, outcome, _ in round_.meter.ended}
    assert billed == {0: 1.0, 1: 1.0, 2: 1.0, 3: 60.0, 4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0}


# Money


def test_a_replacement_that_the_budget_cannot_hold_is_refused_and_recorded(tmp_path: Path):
    probe = make_meter(make_experiment())
    probe.open_round(3, smallest=3)
    # Enough for the round, but not to replace the cost of one failure: its worst case.
    worst = Play(
        "timeout", None, "timed out after 60 s", billed_s=70.0, init_s=10.0, is_metered=True
    )
    round_ = Round(tmp_path, {(1, 0): worst}, slots=3, usd=probe.budget.reserved_usd * 1.0000001)
    came = round_.finish()
    assert sorted(came) == [0, 2]
    assert len(round_.ids(1)) == 1
    (refused,) = round_.events("replacement_refused")
    assert refused["slot"] == 1
    assert "budget" in refused["reason"]
    assert round_.events("actor_replaced") == []
    assert reserved(round_.meter) == {"round"}
    assert round_.meter.budget.free_usd >= 0


def test_every_attempt_pays_for_its_traffic_and_its_time(tmp_path: Path):
    episode = OpenEpisodeRecord("4-0", b"e" * 500)
    round_ = Round(
        tmp_path,
        {(0, 0): Play("error", None, "x", billed_s=2.0, init_s=0.25)},
        slots=2,
        episodes=[episode],
    )
    round_.finish()
    sizes = {i.invocation_id: len(trajectory(i.event)) for i in round_.fleet.started}
    figures = {
        (slot, attempt): (outcome.billed_s, outcome.init_s, traffic_bytes)
        for slot, attempt, outcome, traffic_bytes in round_.meter.ended
    }
    assert figures[0, 0] == (2.0, 0.25, WEIGHTS_BYTES + 500)
    assert figures[0, 1] == (1.0, 0.5, WEIGHTS_BYTES + 500 + sizes[round_.ids(0)[1]])
    assert figures[1, 0][2] == WEIGHTS_BYTES + sizes[round_.ids(1)[0]]
    # Of these, only trajectories leave AWS, if the trainer is elsewhere.
    assert round_.meter.answers_bytes == {
        (0, 0): 0,
        (0, 1): sizes[round_.ids(0)[1]],
        (1, 0): sizes[round_.ids(1)[0]],
    }
    assert sorted(round_.group.tally.billed_s) == [1.0, 1.0, 2.0]


# Before the first round

WARM = replace(OK, submits=None, billed_s=2.5)


def prewarm(
    tmp_path: Path, plays: Sequence[Play], words: str = "", *, actors: int = 3, usd: float = 1000.0
) -> Round:
    """Prewarms actors, which must fail in these words, if any."""
    round_ = Round(tmp_path, lambda event, nth: plays[event["slot"]], slots=0, usd=usd)
    with (
        pytest.raises((ActorsKeepFailingError, BudgetError), match=words)
        if words
        else nullcontext()
    ):
        round_.flight.prewarm(actors, {"run_id": "r", "round_index": 0}, LIMIT_S)
    return round_


def test_prewarmed_are_reserved_and_saved_before_they_start_and_settled_when_they_ended(
    tmp_path: Path,
):
    round_ = prewarm(tmp_path, [WARM] * 3)
    steps = [entry for entry in round_.log if entry[0] in ("start", "ledger")]
    worst_usd = cost_model(make_experiment()).roles[ACTOR].worst_case_usd()
    assert steps == [
        ("ledger", pytest.approx(3 * worst_usd)),
        ("start", (0, 1, 2)),
        ("ledger", 0.0),
    ]
    (event,) = round_.events("actors_prewarmed")
    assert (event["actors"], event["failed"]) == (3, 0)
    assert event["usd"] == round_.meter.spent_usd > 0.0


@pytest.mark.parametrize(
    "plays", [[ERROR] * 3, [NEVER_RETURNS, ERROR, NEVER_STARTED], [DEAF, DEAF, ERROR]]
)
def test_if_all_prewarmed_fail_the_run_ends_with_the_root_error(tmp_path: Path, plays: list[Play]):
    round_ = prewarm(tmp_path, plays, "no actor starts: RuntimeError: broken joint")
    assert round_.events("actors_prewarmed")[0]["failed"] == 3
    assert round_.log[-1][0] == "ledger" and round_.meter.reserved_usd == 0.0


def test_as_many_are_prewarmed_as_the_budget_holds(tmp_path: Path):
    worst_usd = cost_model(make_experiment()).roles[ACTOR].worst_case_usd()
    round_ = prewarm(tmp_path, [WARM, CRASHED], actors=5, usd=2.5 * worst_usd)
    assert len(round_.fleet.started) == round_.events("actors_prewarmed")[0]["actors"] == 2
    poor = prewarm(tmp_path, [], "does not hold even one actor", usd=0.5 * worst_usd)
    assert poor.fleet.started == []


# Open episodes


def test_open_episodes_are_there_for_all_attempts_and_gone_afterwards(tmp_path: Path):
    seen: list[tuple[int, str, bytes]] = []
    cache = FakeCache()

    def script(event: Mapping[str, Any], nth: int) -> Play:
        data = cache.fetch_episode(event["episode_id"]) if event["episode_id"] else b""
        seen.append((event["slot"], event["episode_id"], data))
        return ERROR if event["slot"] == 1 and nth == 0 else OK

    episodes = [OpenEpisodeRecord("4-0", b"zero"), OpenEpisodeRecord("4-1", b"one")]
    round_ = Round(tmp_path, script, slots=3, cache=cache, episodes=episodes)
    came = round_.finish()
    assert sorted(seen) == [
        (0, "4-0", b"zero"),
        (1, "4-1", b"one"),
        (1, "4-1", b"one"),
        (2, "", b""),
    ]
    assert wire.field_text(came[1]["continued_episode"]) == "4-1"
    assert cache.episodes == {}
