"""Environments that say which actions are allowed: actors choose no others, and record the masks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import EpisodeReplayError, UnusableEnvironmentError
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out
from lambda_actor.trial import random_policy

MASKED = "tests.environments:make_masked"
WAYS: dict[str, dict[str, Any]] = {
    "info": {},
    "several, observed": {"counts": [3, 4], "is_observed": True},
}
WHERE: dict[str, Any] = {"seed": 3, "round_index": 1, "slot": 0}
BY_WAY = pytest.mark.parametrize("kwargs", WAYS.values(), ids=WAYS)


def made(**kwargs: Any) -> ActorEnvironment:
    return make_environment(MASKED, options={"kwargs": kwargs})


def played(environment: Any, steps: int = 60, **options: Any) -> Fragment:
    return roll_out(
        environment, random_policy(environment), fragment_steps=steps, **{**WHERE, **options}
    )


@BY_WAY
def test_no_forbidden_action_is_chosen(kwargs: dict[str, Any]) -> None:
    environment = made(**kwargs)
    fragment = played(environment)
    # The environment raises at a forbidden action.
    assert fragment.action_masks is not None
    assert fragment.action_masks.shape == (60, sum(environment.spaces.choice_counts))
    taken = fragment.actions.reshape(60, -1) + environment.spaces.choice_starts
    assert np.take_along_axis(fragment.action_masks, taken, 1).all()
    assert fragment.observations.shape == (60, 2), "the policy does not see the mask"
    assert len({*map(bytes, fragment.action_masks)}) > 20, "each step's own"


def replayed() -> ReplayedEnvironment:
    return ReplayedEnvironment(
        lambda: make_environment("tests.environments:make_replayed_masked"), is_made_anew=False
    )


@pytest.mark.parametrize("make", [made, replayed])
def test_an_episode_that_another_actor_continues_goes_on_with_its_mask(make: Any) -> None:
    whole, first = played(make(), 27), played(make(), 14)
    assert first.open_episode is not None and whole.action_masks is not None
    sent = OpenEpisode.from_bytes(first.open_episode.to_bytes())
    second = played(make(), 5, open_episode=sent, slot=1)
    assert second.action_masks is not None
    assert second.action_masks[0].tobytes() == whole.action_masks[14].tobytes()


def test_a_replayed_episode_proves_its_masks() -> None:
    first = played(replayed(), 14)

    class OtherMasks(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            *found, info = self.env.step(action)
            return *found, {"action_mask": np.ones_like(info["action_mask"])}

    other = ReplayedEnvironment(
        lambda: ActorEnvironment(
            OtherMasks(
                gymnasium.wrappers.TimeLimit(make_environment(MASKED).gymnasium_environment, 10)
            ),
            "other",
        ),
        is_made_anew=False,
    )
    with pytest.raises(EpisodeReplayError):
        other.set_state(first.open_episode.state)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros(5, np.int8), r"allows no value of a choice: \[0, 0, 0, 0, 0\]"),
        (np.ones(4, np.int8), "gives an action mask int8 of shape .4,.; allowed: 5 of 0 and 1"),
    ],
)
def test_what_is_no_mask_is_refused(mask: Any, words: str) -> None:
    with pytest.raises(UnusableEnvironmentError, match=words):
        made().mask_of(mask)
