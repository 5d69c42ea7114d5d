"""Several fragments or events at once give, to the bit, the same results as one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lambda_actor import handler as actor
from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.environments import make_environment
from lambda_actor.errors import CacheMissError, RaisingEnvironmentError, UnusableEnvironmentError
from lambda_actor.handler import handler, handler_together
from lambda_actor.rollout import OpenEpisode, Request, roll_out, roll_out_together
from lambda_actor.trial import random_policy
from tests.lambda_actor.test_handler import COUNTER, make_event, weights

RAISING = "tests.environments:make_raising"


@pytest.mark.parametrize(
    ("environment_id", "steps", "options"),
    [
        ("Hopper-v5", 60, {}),
        ("tests.environments:make_pictures", 23, {}),
        (COUNTER, 25, {"truncate_at_fragment": True}),
        ("tests.environments:make_limited", 25, {"drop_unfinished": True}),
        ("Blackjack-v1", 20, {}),
        ("tests.environments:make_masked", 23, {}),
        ("ALE/Breakout-v5", 12, {}),
    ],
)
def test_fragments_in_lock_step_are_those_of_single_environments(
    environment_id: str, steps: int, options: dict[str, bool]
) -> None:
    """Covers two rounds, so that episodes are continued and environments are reused."""
    environments = [make_environment(environment_id) for _ in range(3)]
    single = make_environment(environment_id)
    policy = random_policy(single)
    episodes: list[OpenEpisode | None] = [None] * 3
    for round_index in (1, 2):
        requests = [Request(3, round_index, slot, episode) for slot, episode in enumerate(episodes)]
        found = roll_out_together(environments, policy, requests, fragment_steps=steps, **options)
        for fragment, one in zip(found, requests, strict=True):
            named = {name: value for name, value in vars(one).items() if name != "should_stop"}
            alone = roll_out(single, policy, fragment_steps=steps, **named, **options)
            assert fragment.fields().keys() == alone.fields().keys()
            for name, array in alone.fields().items():
                np.testing.assert_array_equal(fragment.fields()[name], array, err_msg=name)
        episodes = [one.open_episode for one in found]
    assert (None in episodes) == (bool(options) or not single.can_save_episode)


# Events


@pytest.fixture
def event(server_url: str, run_id: str, cache: TrajectoryCache) -> dict[str, Any]:
    cache.publish_weights(3, weights())
    return make_event(server_url, run_id)


def events_of(event: dict[str, Any], cache: TrajectoryCache, *changes: Any) -> list[dict[str, Any]]:
    """Returns an event for each of these changes, in slots of their own, all expected."""
    events = [
        {**event, "invocation_id": f"i{slot}", "slot": slot, **changed}
        for slot, changed in enumerate(changes)
    ]
    cache.expect([one["invocation_id"] for one in events])
    return events


def brought(cache: TrajectoryCache, count: int) -> list[bytes | None]:
    return [cache.take(f"i{slot}") for slot in range(count)]


def test_events_served_together_bring_what_each_brings_alone(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    cache.publish_weights(4, weights(policy_version=4, seed=1))
    changes: list[dict[str, Any]] = [
        {},
        {"policy_version": 4},
        {"fragment_steps": 7},
        {"truncate_at_fragment": True},
        {},
        {"drop_unfinished": True},
        {},
    ]
    for round_index in (1, 2):
        answers = handler_together(events := events_of(event, cache, *changes), None)
        together = brought(cache, 7)
        events_of(event, cache, *changes)
        assert answers == [handler(one, None) for one in events]
        assert together == brought(cache, 7)
        assert [one["invocation_id"] for one in answers] == [f"i{slot}" for slot in range(7)]
        assert None not in together
        # Episodes that are continued in used environments.
        for slot in (0, 1, 2, 6):
            message = wire.decode(together[slot], wire.Kind.TRAJECTORY)["open_episode"].tobytes()
            cache.publish_episodes({f"{round_index}-{slot}": message})
            changes[slot] |= {"round_index": 2, "episode_id": f"{round_index}-{slot}"}


def test_an_environment_that_raised_is_not_used_again_and_costs_no_other_event(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    raises = {"environment_id": RAISING}
    first, raising, last = handler_together(events_of(event, cache, {}, raises, {}), None)
    assert first["status"] == last["status"] == "accepted"
    assert isinstance(raising, RaisingEnvironmentError)
    assert str(raising).startswith(f"{RAISING} raised RuntimeError: the motor is on fire, in /")
    assert [data is None for data in brought(cache, 3)] == [False, True, False]
    handler_together(events_of(event, cache, raises, raises), None)
    assert actor.sandbox.environments == []


def test_environments_whose_episodes_cannot_be_saved_are_not_used_again(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    stateless = {"environment_id": "tests.environments:make_stateless_limited"}
    answers = handler_together(events_of(event, cache, stateless, stateless), None)
    assert [one["status"] for one in answers] == ["accepted"] * 2
    assert actor.sandbox.environments == []


def test_what_is_wrong_with_one_event_costs_no_other_one(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    changes = [
        {"policy_version": 99},
        {"episode_id": "never"},
        {"environment_id": "no_such_module:make"},
        {},
    ]
    *wrong, sound = handler_together(events_of(event, cache, *changes), None)
    assert list(map(type, wrong)) == [CacheMissError, CacheMissError, UnusableEnvironmentError]
    assert sound["status"] == "accepted"
