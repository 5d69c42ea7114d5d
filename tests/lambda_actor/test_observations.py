"""Spaces other than Boxes: flattened as Gymnasium does, and a picture beside numbers travels as bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.frames import apart, stack_frames
from lambda_actor.policy import Policy
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces
from tests.environments import OtherSpaces, policy_arrays

NUMBERS = spaces.Box(-9.0, 9.0, (2, 3))
CHOICES = spaces.Tuple((spaces.MultiDiscrete([[2, 3], [1, 4]]), spaces.MultiBinary((2, 2))))
ODD = spaces.Dict({"z": spaces.Discrete(4, start=-1), "a": NUMBERS, "m": CHOICES})


@pytest.mark.parametrize(
    ("space", "size", "binary_parts"),
    [
        (spaces.Discrete(5, start=3), 5, ((0, 5),)),
        (ODD, 6 + 10 + 4 + 4, ((6, 16), (16, 20), (20, 24))),
    ],
    ids=str,
)
def test_what_a_policy_sees_is_what_gymnasium_flattens(
    space: spaces.Space[Any], size: int, binary_parts: tuple[tuple[int, int], ...]
) -> None:
    environment = ActorEnvironment(OtherSpaces(space, spaces.Discrete(2)), "odd")
    assert environment.spaces == Spaces((size,), binary_parts=binary_parts, action_count=2)
    space.seed(1)
    observation = space.sample()
    frame = environment.to_frame(observation)
    np.testing.assert_array_equal(frame, np.float32(spaces.flatten(space, observation)))
    assert {number for part in binary_parts for number in frame[slice(*part)]} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("space", "counts", "action", "taken"),
    [
        (
            spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[5, 0], [-1, 2]], dtype=np.int32),
            (2, 3, 1, 4),
            [1, 2, 0, 3],
            [[6, 2], [-1, 5]],
        ),
        (spaces.MultiBinary((1, 2)), (2, 2), [1, 0], [[1, 0]]),
    ],
    ids=str,
)
def test_several_choices_reach_the_environment_in_its_own_shape(
    space: spaces.Space[Any], counts: tuple[int, ...], action: list[int], taken: list[Any]
) -> None:
    environment = ActorEnvironment(OtherSpaces(NUMBERS, space), "odd")
    assert environment.spaces == Spaces((6,), action_counts=counts)
    found = environment.to_environment(np.array(action))
    assert found.tolist() == taken and space.contains(found)
    assert environment.spaces.action_starts == tuple(np.ravel(taken) - np.array(action))


def test_pictures_beside_numbers_travel_as_bytes_and_go_on_after_a_cut() -> None:
    made = make_environment("tests.environments:make_signs")
    # Practically deterministic.
    policy = Policy(policy_arrays(spaces=made.spaces, network="combined", gain=1e5))

    def rolled_out(steps: int, episode: OpenEpisode | None = None) -> tuple[Any, Fragment]:
        where: dict[str, Any] = {"seed": 0, "round_index": 0, "slot": 0, "open_episode": episode}
        fragment = roll_out(made, policy, fragment_steps=steps, **where)
        return stack_frames(fragment.frames, fragment.observations), fragment

    (whole, _), (head, first) = rolled_out(9), rolled_out(4)
    tail, _ = rolled_out(5, OpenEpisode.from_bytes(first.open_episode.to_bytes()))
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole)
    assert first.kind is wire.Kind.FRAME_TRAJECTORY and first.frames.dtype == np.uint8
    pictures, vectors = apart(whole, made.spaces)
    assert set(np.unique(pictures)) == {30, 220}
    assert vectors[:, :11].argmax(1).tolist() == list(range(9))


TWO_PICTURES = spaces.Dict(dict.fromkeys("ab", spaces.Box(0, 255, (20, 24, 3), np.uint8)))


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Box(0.0, 1.0, (0,)), TWO_PICTURES])
def test_other_spaces_are_refused_with_what_can_be_done(space: Any) -> None:
    environment = gymnasium.make("CartPole-v1")
    environment.observation_space = space
    with pytest.raises(UnusableEnvironmentError, match=r"'odd'.*supported: Box.*FilterObserv"):
        ActorEnvironment(environment, "odd")
    environment.action_space = space
    environment.observation_space = NUMBERS
    with pytest.raises(UnusableEnvironmentError, match="action space is .*ActionWrapper"):
        ActorEnvironment(environment, "odd")
