"""Several observations, fragments or events at once give, to the bit, the same results as one at a time."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from lambda_actor import handler as actor
from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.environments import make_environment
from lambda_actor.errors import (
    CacheMissError,
    RaisingEnvironmentError,
    UnusableEnvironmentError,
)
from lambda_actor.handler import handler, handler_together
from lambda_actor.rollout import Fragment, OpenEpisode, Request, roll_out, roll_out_together
from lambda_actor.trial import random_policy
from tests.lambda_actor.test_handler import COUNTER, make_event, weights

RAISING = "tests.environments:make_raising"


# Fragments


def requests_of(count: int, **changed: Any) -> list[Request]:
    return [Request(seed=3, round_index=5, slot=slot, **changed) for slot in range(count)]


def assert_equal(found: object, expected: Fragment) -> None:
    assert isinstance(found, Fragment)
    for field in fields(Fragment):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "open_episode":
            assert (one is None) == (other is None)
            assert one is None or one.to_bytes() == other.to_bytes()
        elif isinstance(other, np.ndarray):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tobytes() == other.tobytes(), field.name
        else:
            assert one == other, field.name


ENVIRONMENTS: dict[str, tuple[int, dict[str, Any]]] = {
    "Hopper-v5": (150, {}),
    "CartPole-v1": (70, {}),
    "tests.environments:make_pictures": (23, {}),
    COUNTER: (25, {"truncate_at_fragment": True}),
    "tests.environments:make_limited": (25, {"drop_unfinished": True}),
    "Blackjack-v1": (20, {}),
    "tests.environments:make_masked": (23, {}),
}
if importlib.util.find_spec("ale_py"):
    ENVIRONMENTS["ALE/Breakout-v5"] = (12, {})


@pytest.mark.parametrize("environment_id", ENVIRONMENTS)
def test_fragments_in_lock_step_are_those_of_single_environments(environment_id: str) -> None:
    """Covers two rounds, so that episodes are continued and environments are reused."""
    steps, options = ENVIRONMENTS[environment_id]
    count = 4
    environments = [make_environment(environment_id) for _ in range(count)]
    single = make_environment(environment_id)
    policy = random_policy(single)
    episodes: list[OpenEpisode | None] = [None] * count
    for round_index in (1, 2):
        requests = [Request(3, round_index, slot, episode) for slot, episode in enumerate(episodes)]
        found = roll_out_together(environments, policy, requests, fragment_steps=steps, **options)
        for slot, (fragment, episode) in enumerate(zip(found, episodes, strict=True)):
            assert_equal(
                fragment,
                roll_out(
                    single,
                    policy,
                    fragment_steps=steps,
                    seed=3,
                    round_index=round_index,
                    slot=slot,
                    open_episode=episode,
                    **options,
                ),
            )
        episodes = [one.open_episode for one in found]
    assert (None in episodes) == (bool(options) or not single.can_save_episode)


# Events


@pytest.fixture
def event(server_url: str, run_id: str, cache: TrajectoryCache) -> dict[str, Any]:
    cache.publish_weights(3, weights())
    return make_event(server_url, run_id)


def events_of(
    event: dict[str, Any], cache: TrajectoryCache, count: int, **changed: Any
) -> list[dict[str, Any]]:
    """Returns the events of ``count`` slots, all expected."""
    events = [
        {**event, "invocation_id": f"i{slot}", "slot": slot, **changed} for slot in range(count)
    ]
    cache.expect([one["invocation_id"] for one in events])
    return events


def brought(cache: TrajectoryCache, count: int) -> list[bytes | None]:
    return [cache.take(f"i{slot}") for slot in range(count)]


def test_events_served_together_bring_what_each_brings_alone(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    events = events_of(event, cache, 3)
    answers = handler_together(events, None)
    together = brought(cache, 3)
    assert len(actor.sandbox.environments) == 3
    events_of(event, cache, 3)
    assert answers == [handler(one, None) for one in events]
    assert together == brought(cache, 3)
    # Episodes that are continued in used environments.
    cache.publish_episodes(
        {
            f"1-{slot}": wire.decode(data, wire.Kind.TRAJECTORY)["open_episode"].tobytes()
            for slot, data in enumerate(together)
        }
    )
    further = [{**one, "round_index": 2, "episode_id": f"1-{one['slot']}"} for one in events]
    cache.expect([one["invocation_id"] for one in further])
    handler_together(further, None)
    together = brought(cache, 3)
    cache.expect([one["invocation_id"] for one in further])
    assert [handler(one, None)["status"] for one in reversed(further)] == ["accepted"] * 3
    assert together == brought(cache, 3)


def test_an_environment_that_raised_is_not_used_again_and_costs_no_other_event(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    events = events_of(event, cache, 3)
    events[1]["environment_id"] = RAISING
    first, raising, last = handler_together(events, None)
    assert first["status"] == last["status"] == "accepted"
    assert isinstance(raising, RaisingEnvironmentError)
    assert str(raising).startswith(f"{RAISING} raised RuntimeError: the motor is on fire, in /")
    assert [data is None for data in brought(cache, 3)] == [False, True, False]
    assert not any(one.environment_id == RAISING for one in actor.sandbox.environments)
    handler_together(events_of(event, cache, 2, environment_id=RAISING), None)
    assert actor.sandbox.environments == []


def test_environments_whose_episodes_cannot_be_saved_are_not_used_again(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    answers = handler_together(
        events_of(event, cache, 2, environment_id="tests.environments:make_stateless_limited"), None
    )
    assert [one["status"] for one in answers] == ["accepted"] * 2
    assert actor.sandbox.environments == []


def test_what_is_wrong_with_one_event_costs_no_other_one(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    events = events_of(event, cache, 4)
    events[0]["policy_version"] = 99
    events[1]["episode_id"] = "never"
    events[2]["environment_id"] = "no_such_module:make"
    *wrong, sound = handler_together(events, None)
    assert list(map(type, wrong)) == [
        CacheMissError,
        CacheMissError,
        UnusableEnvironmentError,
    ]
    assert sound["status"] == "accepted"


def test_events_that_are_not_alike_are_served_one_group_after_the_other(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    cache.publish_weights(4, weights(policy_version=4, seed=1))
    changes = [
        {},
        {"policy_version": 4},
        {"fragment_steps": 7},
        {"truncate_at_fragment": True},
        {"prewarm": True},
        {"drop_unfinished": True},
        {},
    ]
    events = [
        {**one, **changed} for one, changed in zip(events_of(event, cache, 7), changes, strict=True)
    ]
    answers = handler_together(events, None)
    together = brought(cache, 7)
    events_of(event, cache, 7)
    assert answers == [handler(one, None) for one in events]
    assert together == brought(cache, 7)
    assert [answer["invocation_id"] for answer in answers] == [
        one["invocation_id"] for one in events
    ]
    assert sum(data is None for data in together) == 1, "the prewarmed one submits nothing"
