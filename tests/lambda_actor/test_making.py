"""Environments made by name, with arguments, wrappers and a time limit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor.environments import make_environment
from tests.environments import LIMIT_STEPS, Counter

WRAPPERS = "gymnasium.wrappers:"


def make_counter_of(episode_steps: int = 3) -> gymnasium.Env:
    return Counter(episode_steps=episode_steps)


class Weighted(gymnasium.Wrapper):
    """Accepts only an array, like MO-Gymnasium's LinearReward."""

    def __init__(self, environment: gymnasium.Env, weight: np.ndarray) -> None:
        super().__init__(environment)
        self.weight = weight.reshape(-1)


def steps_of_an_episode(environment_id: str, **options: Any) -> int:
    environment = make_environment(environment_id, options=options)
    environment.reset(0)
    action = np.zeros(environment.spaces.action_shape, np.float32)
    return next(step for step in range(1, 1000) if any(environment.step(action)[2:]))


def test_arguments_reach_whatever_makes_it() -> None:
    assert steps_of_an_episode(f"{__name__}:make_counter_of", kwargs={"episode_steps": 5}) == 5
    hopper = make_environment(
        "Hopper-v5", options={"kwargs": {"exclude_current_positions_from_observation": False}}
    )
    assert hopper.spaces.observation_size == 12
    options = {"kwargs": {"full_action_space": True}, "frame_stack": 4}
    game = make_environment("ALE/Qbert-v5", options=options)
    assert (game.spaces.action_count, game.spaces.observation_shape) == (18, (4, 84, 84))


@pytest.mark.parametrize(
    ("environment_id", "registered"),
    [
        ("Pendulum-v1", 200),
        ("tests.environments:TestCounter-v0", LIMIT_STEPS),
        ("tests.environments:make_endless", None),
        ("ALE/Qbert-v5", 27_000),
    ],
)
def test_a_limit_counts_the_policys_steps(environment_id: str, registered: int | None) -> None:
    assert make_environment(environment_id).episode_steps_max == registered
    limited = make_environment(environment_id, options={"max_episode_steps": 4})
    assert (limited.episode_steps_max, limited.can_save_episode) == (4, True)
    assert steps_of_an_episode(environment_id, max_episode_steps=4) == 4


def test_the_first_wrapper_is_the_innermost_and_lists_are_tuples() -> None:
    environment = make_environment(
        "Pendulum-v1",
        options={
            "wrappers": [
                {WRAPPERS + "ReshapeObservation": {"shape": [3, 1]}},
                {WRAPPERS + "TimeLimit": {"max_episode_steps": 2}},
            ]
        },
    )
    outermost = environment.gymnasium_environment
    assert [type(outermost), type(outermost.env)] == [
        gymnasium.wrappers.TimeLimit,
        gymnasium.wrappers.ReshapeObservation,
    ]
    assert (outermost.observation_space.shape, environment.episode_steps_max) == ((3, 1), 2)


def test_a_wrapper_that_takes_no_tuple_gets_an_array() -> None:
    wrapper = f"{__name__}:Weighted"
    environment = make_environment(
        "Pendulum-v1", options={"wrappers": [{wrapper: {"weight": [1.0, 0.5]}}]}
    )
    assert environment.gymnasium_environment.weight.tolist() == [1.0, 0.5]
