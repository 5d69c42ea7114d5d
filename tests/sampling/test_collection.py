"""A round's actors, on a fleet and a cache that play a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.errors import CacheUnavailableError
from lambda_actor.frames import combined, pack_frames
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from runtime.errors import ActorsKeepFailingError
from runtime.learner.batch import assemble_batch
from runtime.ports.fleet import Outcome
from runtime.ports.money import ACTOR, Work
from runtime.ports.sampling import Actor, ActorSpec, OpenEpisodeRecord
from runtime.records.events import EventLog
from runtime.sampling.collection import Collection
from runtime.sampling.episodes import OpenEpisodes
from runtime.sampling.failures import Failures, Patience
from runtime.sampling.serverless import ServerlessSampler
from tests.fakes import (
    ACTION_SIZE,
    CRASHED,
    CRASHED_AFTER_SUBMIT,
    DEAF,
    ERROR,
    LATE_COMER,
    NEVER_RETURNS,
    NEVER_STARTED,
    OBSERVATION_SIZE,
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
from tests.sampling.parts import (
    EVENT,
    STEPS,
    WEIGHTS_BYTES,
    make_experiment,
    make_meter,
    read_events,
    reserved,
)


class Round:
    """One collection with all its parts."""

    def __init__(
        self,
        tmp_path: Path,
        script: Any = None,
        *,
        slots: int = 4,
        attempts: int = 3,
        deadline_s: float = 100.0,
        failures_max: int = 16,
        usd: float = 1000.0,
        at_once: int = 10**9,
        cache: FakeCache | None = None,
        spaces: Spaces = SPACES,
        episodes: Mapping[int, OpenEpisodeRecord] | None = None,
    ) -> None:
        self.events_path = tmp_path / "events.jsonl"
        self.log: list[Any] = []
        self.clock, self.cache = ManualClock(), cache or FakeCache(self.log)
        self.fleet = FakeFleet(self.cache, self.clock, script, at_once=at_once, log=self.log)
        self.meter = make_meter(make_experiment(budget={"usd": usd}))
        events = EventLog(self.events_path, lambda: "now")
        self.failures = Failures(
            events, OpenEpisodes(events), Patience(attempts=attempts, failures_max=failures_max)
        )
        sampler = ServerlessSampler(
            self.fleet, self.cache, self.meter, clock=self.clock, give_up_timeout_s=0.05
        )
        self.collection = Collection(
            sampler,
            self.meter,
            self.failures,
            events,
            ActorSpec(
                {**EVENT, "policy_version": 7, "round_index": 5}, spaces, WEIGHTS_BYTES, 60.0
            ),
            prefix="r5t0",
            deadline_s=deadline_s,
            save_ledger=lambda: None,
            clock=self.clock,
        )
        assert self.meter.open_round(slots, smallest=1) == slots
        self.collection.start(range(slots), episodes or {})

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.events_path, kind)

    def ids(self, slot: int) -> list[str]:
        return [i.invocation_id for i in self.fleet.started if i.event["slot"] == slot]


def test_every_slot_brings_its_own_trajectory(tmp_path: Path):
    round_ = Round(tmp_path, slots=5)
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == list(range(5))
    for slot, found in collected.trajectories.items():
        expected = trajectory_fields(
            {
                **EVENT,
                "policy_version": 7,
                "round_index": 5,
                "slot": slot,
                "episode_id": "",
                "invocation_id": round_.ids(slot)[0],
            }
        )
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name
    assert (collected.failed, collected.late, collected.billed_s) == (0, 0, [1.0] * 5)
    assert round_.events() == []
    assert reserved(round_.meter) == {"round"}
    assert round_.collection.started == 5


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_it_does_not_matter_how_outcomes_are_bundled(tmp_path: Path, at_once: int):
    round_ = Round(tmp_path, {(1, 0): ERROR, (2, 0): CRASHED_AFTER_SUBMIT}, at_once=at_once)
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    assert collected.failed == 1
    assert reserved(round_.meter) == {"round"}


def test_an_event_carries_what_the_handler_asks_for(tmp_path: Path):
    from lambda_actor.events import check_event
    from lambda_actor.handler import EVENT_FIELDS

    round_ = Round(tmp_path)
    for invocation in round_.fleet.started:
        check_event(invocation.event, EVENT_FIELDS)
        assert invocation.event["invocation_id"] == invocation.invocation_id
        json.dumps(dict(invocation.event), allow_nan=False)


@pytest.mark.parametrize("play", [ERROR, CRASHED, TIMEOUT], ids=["error", "crashed", "timeout"])
def test_a_failed_actor_is_replaced_under_a_new_id(tmp_path: Path, play: Play):
    round_ = Round(tmp_path, {(1, 0): play})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    first, second = round_.ids(1)
    assert first != second
    assert wire.field_text(collected.trajectories[1]["invocation_id"]) == second
    events = [dict(i.event) for i in round_.fleet.started if i.event["slot"] == 1]
    assert events[0] | {"invocation_id": ""} == events[1] | {"invocation_id": ""}
    assert collected.failed == 1
    (failed,) = round_.events("actor_failed")
    assert (failed["slot"], failed["attempt"], failed["status"], failed["error"]) == (
        1,
        0,
        play.status,
        play.error,
    )
    assert failed["invocation_id"] == first
    assert [(e["slot"], e["attempt"]) for e in round_.events("actor_replaced")] == [(1, 1)]


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_a_slot_is_tried_so_often_and_no_more(tmp_path: Path, attempts: int):
    round_ = Round(
        tmp_path, lambda event, nth: ERROR if event["slot"] == 2 else OK, attempts=attempts
    )
    collected = round_.collection.finish()
    assert len(round_.ids(2)) == len(set(round_.ids(2))) == attempts
    assert sorted(collected.trajectories) == [0, 1, 3]
    assert collected.failed == attempts
    assert len(collected.billed_s) == 3 + attempts
    assert reserved(round_.meter) == {"round"}


def test_ids_of_all_slots_and_attempts_differ(tmp_path: Path):
    round_ = Round(
        tmp_path, lambda event, nth: ERROR if nth < 2 else OK, slots=12, failures_max=100
    )
    round_.collection.finish()
    ids = [i.invocation_id for i in round_.fleet.started]
    assert len(ids) == len(set(ids)) == 36
    assert all(one.startswith("r5t0") for one in ids)


def test_an_actor_that_died_after_its_trajectory_was_accepted_is_not_replaced(tmp_path: Path):
    round_ = Round(tmp_path, {(0, 0): CRASHED_AFTER_SUBMIT})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    assert len(round_.ids(0)) == 1
    assert collected.failed == 0
    assert round_.events() == []
    assert len(collected.billed_s) == 4


def test_a_trajectory_that_comes_too_late_is_billed_and_counted(tmp_path: Path):
    round_ = Round(tmp_path, {(3, 0): LATE_COMER})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2]
    assert (collected.failed, collected.late) == (1, 1)
    assert len(collected.billed_s) == 4
    assert len(round_.ids(3)) == 1
    assert [event["count"] for event in round_.events("trajectories_late")] == [1]
    assert reserved(round_.meter) == {"round"}


def test_the_door_is_closed_before_the_fleet_is_told(tmp_path: Path):
    """An actor that the fleet cannot kill asks the cache whether it may continue."""
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (2, 0): LATE_COMER, (3, 0): DEAF})
    round_.collection.finish()
    given_up = {round_.ids(slot)[0] for slot in (1, 2, 3)}
    told = next(index for index, (what, _) in enumerate(round_.log) if what == "abandon")
    assert set(round_.log[told][1]) == given_up
    assert given_up <= {one for what, one in round_.log[:told] if what == "take"}


def test_what_was_in_before_its_actor_was_given_up_is_taken(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): SUBMITS_AND_HANGS, (3, 0): NEVER_RETURNS})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2]
    assert (collected.failed, collected.late) == (1, 0)
    assert len(collected.billed_s) == 4
    assert round_.cache.doors == {}


class _Unreachable(FakeCache):
    """A fleet that disappears after the start."""

    def take(self, invocation_id: str) -> bytes | None:
        super().take(invocation_id)
        raise CacheUnavailableError("the server does not answer")


def test_the_fleet_is_told_even_where_the_cache_is_gone(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (3, 0): NEVER_RETURNS}, cache=_Unreachable())
    with suppress(CacheUnavailableError):
        round_.collection.abandon("the run ends")
    (told,) = [ids for what, ids in round_.fleet.log if what == "abandon"]
    assert sorted(told) == sorted(invocation.invocation_id for invocation in round_.fleet.started)
    assert round_.fleet.running == {}


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :]


def other_size(name: str, size: int) -> Callable[[Mapping[str, Any]], bytes]:
    def submit(event: Mapping[str, Any]) -> bytes:
        shape = {"observations": (STEPS, size), "actions": (STEPS, size)}[name]
        more = (
            {"bootstrap_observations": np.zeros((1, size), np.float32)}
            if name == "observations"
            else {}
        )
        return trajectory(event, **{name: np.zeros(shape, np.float32)}, **more)

    return submit


def not_finite(name: str, value: float) -> Callable[[Mapping[str, Any]], bytes]:
    def submit(event: Mapping[str, Any]) -> bytes:
        array = trajectory_fields(event)[name].copy()
        array.flat[-1] = value
        return trajectory(event, **{name: array})

    return submit


BAD_TRAJECTORIES: dict[str, tuple[Callable[[Mapping[str, Any]], bytes], str]] = {
    "nothing": (lambda event: b"", "accepted, but is not in the cache"),
    "little": (lambda event: b"N", "TruncatedMessageError"),
    "cut": (lambda event: trajectory(event)[:-7], "TruncatedMessageError"),
    "flipped bit": (lambda event: flipped(trajectory(event), 90), "CorruptedMessageError"),
    "foreign": (lambda event: b"\x80\x04pickle" * 9, "ForeignMessageError"),
    "longer": (lambda event: trajectory(event) + b"\0", "CorruptedMessageError"),
    "another kind": (
        lambda event: bytes(trajectory_fields(event)["open_episode"]),
        "ForeignMessageError",
    ),
    "another version": (lambda event: flipped(trajectory(event), 4), "UnsupportedVersionError"),
    "another slot": (lambda event: trajectory(event, slot=np.int64(9)), "slot is 9"),
    "another round": (lambda event: trajectory(event, round_index=np.int64(4)), "round_index is 4"),
    "another policy": (
        lambda event: trajectory(event, policy_version=np.int64(6)),
        "policy_version is 6",
    ),
    "another id": (
        lambda event: trajectory(event, invocation_id=wire.text_field("r1t0-0-0")),
        "r1t0-0-0",
    ),
    "id not UTF-8": (
        lambda event: trajectory(event, invocation_id=np.array([255, 254], np.uint8)),
        "UTF-8",
    ),
    "another episode": (
        lambda event: trajectory(event, continued_episode=wire.text_field("1-1")),
        "1-1",
    ),
    "episode not UTF-8": (
        lambda event: trajectory(event, continued_episode=np.array([255], np.uint8)),
        "continued",
    ),
    "an open episode that nobody would carry": (
        lambda event: trajectory(event, open_episode=np.zeros(EPISODE_BYTES_MAX + 1, np.uint8)),
        "open_episode has",
    ),
    "more ends than steps": (
        lambda event: trajectory(
            event,
            **{
                name: np.zeros(STEPS + 1, kind)
                for name, kind in (
                    ("episode_returns", np.float64),
                    ("episode_lengths", np.int64),
                    ("episode_first_versions", np.int64),
                )
            },
        ),
        "episodes ended in",
    ),
    "fewer steps": (
        lambda event: trajectory({**event, "fragment_steps": STEPS - 1}),
        "observations",
    ),
    "more steps": (
        lambda event: trajectory({**event, "fragment_steps": STEPS + 1}),
        "observations",
    ),
    "other observations": (other_size("observations", OBSERVATION_SIZE + 1), "observations"),
    "other actions": (other_size("actions", ACTION_SIZE + 1), "actions"),
    "bootstrap after the end": (
        lambda event: trajectory(event, bootstrap_steps=np.array([STEPS])),
        "bootstrap_steps",
    ),
    "bootstrap before the start": (
        lambda event: trajectory(event, bootstrap_steps=np.array([-1])),
        "bootstrap_steps",
    ),
    "bootstrap twice": (
        lambda event: trajectory(
            event,
            bootstrap_steps=np.array([2, 2]),
            bootstrap_observations=np.zeros((2, OBSERVATION_SIZE), np.float32),
        ),
        "bootstrap_steps",
    ),
    **{
        f"{value} in {name}": (not_finite(name, value), name)
        for name in ("observations", "actions", "log_probs", "rewards", "bootstrap_observations")
        for value in (float("nan"), float("inf"))
    },
    # Finite rewards may sum to infinity, which rounds.jsonl cannot hold.
    "infinite return": (
        lambda event: trajectory(
            event,
            episode_returns=np.array([np.inf]),
            episode_lengths=np.array([3]),
            episode_first_versions=np.array([7]),
        ),
        "episode_returns",
    ),
}


@pytest.mark.parametrize("name", BAD_TRAJECTORIES)
def test_a_trajectory_that_cannot_be_used_counts_as_failed_and_is_replaced(
    tmp_path: Path, name: str
):
    submits, words = BAD_TRAJECTORIES[name]
    round_ = Round(tmp_path, {(1, 0): Play("ok", submits)})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    assert len(round_.ids(1)) == 2
    assert wire.field_text(collected.trajectories[1]["invocation_id"]) == round_.ids(1)[1]
    assert collected.failed == 1
    (failed,) = round_.events("actor_failed")
    assert words in failed["error"]
    assert len(collected.billed_s) == 5
    assert reserved(round_.meter) == {"round"}


# Pixels and discrete actions

PIXELS = Spaces((2, 16, 16), frame_shape=(1, 16, 16), frame_stack=2, action_count=3)


def frame_trajectory(event: Mapping[str, Any], **changed: np.ndarray) -> bytes:
    fields = trajectory_fields(event)
    for name in ("observations", "bootstrap_observations"):
        del fields[name]
    stream = np.random.default_rng((event["seed"], event["round_index"], event["slot"]))
    return wire.encode(
        wire.Kind.FRAME_TRAJECTORY,
        fields
        | {
            "actions": stream.integers(0, 3, STEPS),
            "observation_frames": np.array([[0, 0], [0, 1], [1, 2], [2, 3]], np.int32),
            "bootstrap_frames": np.array([[3, 4]], np.int32),
            **pack_frames(stream.integers(0, 256, (5, 1, 16, 16), np.uint8)),
        }
        | changed,
    )


def test_frames_and_discrete_actions_are_taken_in(tmp_path: Path):
    round_ = Round(tmp_path, lambda event, nth: Play(submits=frame_trajectory), spaces=PIXELS)
    collected = round_.collection.finish()
    assert round_.events() == []
    batch = assemble_batch([collected.trajectories[slot] for slot in range(4)], PIXELS)
    assert (batch.observations.shape, batch.observations.dtype) == ((STEPS, 4, 2, 16, 16), np.uint8)
    assert batch.actions.shape == (STEPS, 4)


BAD_FRAMES: dict[str, tuple[Callable[[Mapping[str, Any]], bytes], str]] = {
    "vectors": (trajectory, "ForeignMessageError"),
    "not deflated": (
        lambda event: frame_trajectory(event, frames=np.arange(50, dtype=np.uint8)),
        "inflated",
    ),
    "other size": (
        lambda event: frame_trajectory(event, frames_shape=np.array([6, 1, 16, 16])),
        "of shape",
    ),
    "few bytes that say they are many": (
        lambda event: frame_trajectory(
            event, **pack_frames(np.zeros((2 * STEPS + 3, 1, 16, 16), np.uint8))
        ),
        "at most 10",
    ),
    "other frames": (
        lambda event: frame_trajectory(event, **pack_frames(np.zeros((5, 1, 16, 17), np.uint8))),
        "frames are (5, 1, 16, 17)",
    ),
    "a frame that is not there": (
        lambda event: frame_trajectory(
            event, observation_frames=np.array([[0, 0], [0, 1], [1, 2], [2, 5]], np.int32)
        ),
        "observation_frames",
    ),
    "a negative frame": (
        lambda event: frame_trajectory(event, bootstrap_frames=np.array([[-1, 4]], np.int32)),
        "bootstrap_frames",
    ),
    "another stack": (
        lambda event: frame_trajectory(
            event,
            observation_frames=np.zeros((STEPS, 3), np.int32),
            bootstrap_frames=np.zeros((1, 3), np.int32),
        ),
        "observation_frames",
    ),
    "an action too many": (
        lambda event: frame_trajectory(event, actions=np.array([0, 1, 3, 2])),
        "actions are 0 to 3",
    ),
    "a negative action": (
        lambda event: frame_trajectory(event, actions=np.array([0, -1, 2, 2])),
        "actions are -1",
    ),
    "continuous actions": (
        lambda event: frame_trajectory(event, actions=np.zeros((STEPS, 2), np.float32)),
        "actions",
    ),
}


def test_vectors_beside_pictures_that_are_not_finite_count_as_failed(tmp_path: Path):
    size = 256 + 4 * 2
    spaces = Spaces(
        (1, 1, size), frame_shape=(1, 1, size), beside_shape=(1, 16, 16), action_count=3
    )

    def submits(event: Mapping[str, Any], number: float = 3.5) -> bytes:
        frames = np.stack(
            [combined(np.zeros((1, 16, 16), np.uint8), np.array([1.0, number], np.float32))] * 5
        )
        return frame_trajectory(
            event,
            observation_frames=np.array([[0], [1], [2], [3]], np.int32),
            bootstrap_frames=np.array([[4]], np.int32),
            **pack_frames(frames),
        )

    round_ = Round(
        tmp_path,
        lambda event, nth: Play(
            submits=lambda event: submits(event, np.nan if (event["slot"], nth) == (1, 0) else 3.5)
        ),
        spaces=spaces,
    )
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    (failed,) = round_.events("actor_failed")
    assert "the vectors in its frames are not finite" in failed["error"]


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_frames_that_cannot_be_used_count_as_failed(tmp_path: Path, name: str):
    submits, words = BAD_FRAMES[name]
    round_ = Round(
        tmp_path,
        lambda event, nth: Play(
            submits=submits if (event["slot"], nth) == (1, 0) else frame_trajectory
        ),
        spaces=PIXELS,
    )
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    (failed,) = round_.events("actor_failed")
    assert words in failed["error"]
    assert collected.failed == 1


def test_a_trajectory_that_vanished_from_the_cache_is_replaced(tmp_path: Path):
    class Forgetful(FakeCache):
        def submit(self, invocation_id: str, data: bytes) -> str:
            status = super().submit(invocation_id, data)
            if invocation_id.endswith("-1-0"):
                del self.doors[invocation_id]
            return status

    round_ = Round(tmp_path, cache=Forgetful())
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2, 3]
    assert "not in the cache" in round_.events("actor_failed")[0]["error"]


def test_the_deadline_gives_up_what_still_runs(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS, (3, 0): NEVER_RETURNS}, deadline_s=100.0)
    started_s = round_.clock()
    collected = round_.collection.finish()
    assert round_.clock() - started_s == 100.0
    assert sorted(collected.trajectories) == [0, 2]
    assert collected.failed == 2
    assert [event["count"] for event in round_.events("actors_abandoned")] == [2]
    assert "deadline" in round_.events("actors_abandoned")[0]["reason"]
    assert [i.event["slot"] for i in round_.fleet.started].count(1) == 1, (
        "no replacement after the deadline"
    )
    assert sorted(slot for slot, *_ in round_.meter.ended) == [0, 1, 2, 3]
    assert reserved(round_.meter) == {"round"}


def test_what_never_began_costs_nothing(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): NEVER_STARTED, (3, 0): NEVER_RETURNS})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 2]
    assert collected.failed == 2
    assert collected.billed_s == [1.0] * 3
    assert sorted(slot for slot, *_ in round_.meter.ended) == [0, 2, 3]
    assert collected.slot_s[1] == 0.0
    assert reserved(round_.meter) == {"round"}


def test_the_deadline_counts_from_the_start(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): NEVER_RETURNS}, deadline_s=100.0)
    round_.clock.advance(70.0)
    started_s = round_.clock()
    round_.collection.finish()
    assert round_.clock() - started_s == 30.0


def test_a_failure_after_the_deadline_is_not_replaced(tmp_path: Path):
    class Slow(FakeFleet):
        def wait(self, timeout_s: float):
            self._clock.advance(timeout_s + 1.0)
            return super().wait(0.0)

    round_ = Round(tmp_path, {(1, 0): ERROR})
    round_.fleet.__class__ = Slow
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 2, 3]
    assert len(round_.ids(1)) == 1
    assert round_.events("actor_replaced") == []


def test_an_actor_that_does_not_even_end_when_given_up_is_billed_to_its_limit(tmp_path: Path):
    round_ = Round(tmp_path, {(1, 0): DEAF})
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 2, 3]
    assert collected.failed == 1
    assert sorted(collected.billed_s) == [1.0, 1.0, 1.0, 60.0]
    assert reserved(round_.meter) == {"round"}
    assert round_.cache.submit(round_.ids(1)[0], b"") == "late", "its door is closed"


def test_given_up_before_the_end_nothing_stays_reserved_and_nothing_is_started(tmp_path: Path):
    round_ = Round(tmp_path, {(0, 0): ERROR, (1, 0): NEVER_RETURNS, (2, 0): DEAF})
    round_.collection.abandon("the run ends")
    assert len(round_.fleet.started) == 4
    assert reserved(round_.meter) == {"round"}
    assert sorted(slot for slot, *_ in round_.meter.ended) == [0, 1, 2, 3]
    assert round_.events("actors_abandoned")[0]["reason"] == "the run ends"
    round_.collection.abandon("again")
    assert len(round_.events("actors_abandoned")) == 1


# The circuit breaker


class Breaker:
    """Failures of one actor, which may fail this often in a row."""

    def __init__(self, failures_max: int, tmp_path: Path) -> None:
        self._failures = Round(tmp_path, lambda event, nth: OK, failures_max=failures_max).failures
        self._actor = Actor("i", ActorSpec(EVENT, SPACES, WEIGHTS_BYTES, 60.0), Work(ACTOR, 0), 0)

    def failure(self, reason: str) -> None:
        self._failures.failed(self._actor, Outcome("i", "crashed"), reason)

    def success(self) -> None:
        self._failures.succeeded(self._actor)


def test_a_breaker_trips_at_its_limit_with_the_last_reason(tmp_path: Path):
    breaker = Breaker(3, tmp_path)
    breaker.failure("one")
    breaker.failure("two")
    with pytest.raises(ActorsKeepFailingError, match="3 actors in a row.*three"):
        breaker.failure("three")


def test_a_success_starts_the_count_again(tmp_path: Path):
    breaker = Breaker(2, tmp_path)
    for _ in range(5):
        breaker.failure("one")
        breaker.success()
    breaker.failure("one")
    with pytest.raises(ActorsKeepFailingError):
        breaker.failure("two")


def test_a_breaker_of_one_trips_at_once(tmp_path: Path):
    with pytest.raises(ActorsKeepFailingError, match="only"):
        Breaker(1, tmp_path).failure("only")


def test_failures_with_successes_between_them_do_not_end_the_run(tmp_path: Path):
    # Outcomes come in descending slots: two fail, one succeeds, and so on.
    round_ = Round(
        tmp_path,
        lambda event, nth: ERROR if event["slot"] % 3 else OK,
        slots=9,
        attempts=1,
        failures_max=3,
    )
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 3, 6]
    assert collected.failed == 6


@pytest.mark.parametrize("at_once", [1, 100])
def test_when_the_breaker_trips_all_else_is_still_settled(tmp_path: Path, at_once: int):
    # In descending order, 7 to 5 fail and trip it. The others are successes, failures and one that runs on.
    plays = {
        (7, 0): ERROR,
        (6, 0): CRASHED,
        (5, 0): Play("error", None, "KeyError: 'knee'"),
        (3, 0): TIMEOUT,
        (2, 0): NEVER_RETURNS,
    }
    round_ = Round(tmp_path, plays, slots=8, failures_max=3, attempts=1, at_once=at_once)
    with pytest.raises(ActorsKeepFailingError, match="KeyError: 'knee'"):
        round_.collection.finish()
    round_.collection.abandon("the run ends")
    assert reserved(round_.meter) == {"round"}
    assert sorted((slot, attempt) for slot, attempt, *_ in round_.meter.ended) == [
        (slot, 0) for slot in range(8)
    ]
    billed = {slot: outcome.billed_s for slot, _, outcome, _ in round_.meter.ended}
    assert billed == {0: 1.0, 1: 1.0, 2: 1.0, 3: 60.0, 4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0}


def test_when_the_breaker_trips_no_further_actor_is_paid_for(tmp_path: Path):
    round_ = Round(
        tmp_path, lambda event, nth: ERROR, slots=4, attempts=50, failures_max=3, at_once=1
    )
    with pytest.raises(ActorsKeepFailingError):
        round_.collection.finish()
    # Four were started and two replaced. The third failure ends the run.
    assert len(round_.fleet.started) == 6
    round_.collection.abandon("the run ends")
    assert reserved(round_.meter) == {"round"}
    assert len(round_.meter.ended) == 6


# Money


def test_a_replacement_that_the_budget_cannot_hold_is_refused_and_recorded(tmp_path: Path):
    probe = make_meter(make_experiment())
    probe.open_round(3, smallest=3)
    # Enough for the round, but not to replace the cost of one failure: its worst case.
    worst = Play(
        "timeout", None, "timed out after 60 s", billed_s=70.0, init_s=10.0, is_metered=True
    )
    round_ = Round(tmp_path, {(1, 0): worst}, slots=3, usd=probe.budget.reserved_usd * 1.0000001)
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 2]
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
        episodes={0: episode},
    )
    collected = round_.collection.finish()
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
    # Slots are provisioned here, so nothing starts cold.
    assert collected.slot_s == {0: 3.0, 1: 1.0}
    assert sorted(collected.billed_s) == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "play",
    [
        Play(billed_s=2.5, init_s=1.5, is_metered=True),
        Play("timeout", None, "timed out after 60 s", billed_s=2.5, init_s=1.5, is_metered=True),
        Play(None, None, billed_s=2.5, init_s=1.5, is_metered=True),
    ],
    ids=["ok", "timeout", "abandoned"],
)
def test_what_the_platform_metered_is_billed_and_timed_as_it_is(tmp_path: Path, play: Play):
    round_ = Round(tmp_path, {(0, 0): play}, slots=2, attempts=1)
    collected = round_.collection.finish()
    figures = {
        slot: (outcome.is_metered, outcome.billed_s, outcome.init_s)
        for slot, _, outcome, _ in round_.meter.ended
    }
    assert figures == {0: (True, 2.5, 1.5), 1: (False, 1.0, 0.5)}
    assert collected.slot_s == {0: 2.5, 1: 1.0}


@pytest.mark.parametrize(
    "play", [Play(outcomes=2), Play("error", None, "broken", outcomes=3)], ids=["ok", "error"]
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_an_outcome_that_is_reported_again_is_ignored(tmp_path: Path, play: Play, at_once: int):
    round_ = Round(tmp_path, {(1, 0): play}, slots=3, at_once=at_once)
    collected = round_.collection.finish()
    assert sorted(collected.trajectories) == [0, 1, 2]
    assert collected.failed == (play.status == "error")
    assert len(round_.ids(1)) == 1 + (play.status == "error")
    assert len(collected.billed_s) == 3 + (play.status == "error")


# Open episodes


def test_open_episodes_are_there_for_all_attempts_and_gone_afterwards(tmp_path: Path):
    seen: list[tuple[int, str, bytes]] = []
    cache = FakeCache()

    def script(event: Mapping[str, Any], nth: int) -> Play:
        data = cache.fetch_episode(event["episode_id"]) if event["episode_id"] else b""
        seen.append((event["slot"], event["episode_id"], data))
        return ERROR if event["slot"] == 1 and nth == 0 else OK

    episodes = {0: OpenEpisodeRecord("4-0", b"zero"), 1: OpenEpisodeRecord("4-1", b"one")}
    round_ = Round(tmp_path, script, slots=3, cache=cache, episodes=episodes)
    collected = round_.collection.finish()
    assert sorted(seen) == [
        (0, "4-0", b"zero"),
        (1, "4-1", b"one"),
        (1, "4-1", b"one"),
        (2, "", b""),
    ]
    assert wire.field_text(collected.trajectories[1]["continued_episode"]) == "4-1"
    assert cache.episodes == {}
