"""The game of rllib_figure12.py: a vector of floats whose open episodes travel between actors."""

from __future__ import annotations

import gymnasium
import numpy as np

from benchmarks import atari_ram
from lambda_actor.environments import make_environment

ID = "benchmarks.atari_ram:QbertRam-v0"


def test_observations_are_the_consoles_bytes_as_floats() -> None:
    environment = atari_ram.make()
    observation, _ = environment.reset(seed=0)

    assert observation.dtype == np.float32
    np.testing.assert_allclose(observation * 255, environment.unwrapped.ale.getRAM(), atol=1e-4)


def test_rewards_are_clipped_for_training_alone() -> None:
    def rewards(**options: bool) -> list[float]:
        environment = gymnasium.make(ID, **options)
        environment.reset(seed=0)
        environment.action_space.seed(0)
        found = []
        for _ in range(600):
            _, reward, is_over, *_ = environment.step(environment.action_space.sample())
            found.append(float(reward))
            if is_over:
                environment.reset()
        return found

    points = rewards(is_clipped=False)

    assert max(points) > 1
    assert rewards() == np.sign(points).tolist()


def test_another_actor_continues_an_open_episode() -> None:
    first, second = make_environment(ID), make_environment(ID)
    first.reset(0)
    for action in range(100):
        first.step(action % 6)
    second.set_state(first.get_state())

    for action in range(100):
        (one, *one_rest), (other, *other_rest) = first.step(action % 6), second.step(action % 6)
        np.testing.assert_array_equal(one, other)
        assert one_rest == other_rest
