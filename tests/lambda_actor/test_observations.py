"""Observations that are no Box: as Gymnasium flattens them, and what is 0 or 1 stays so."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from lambda_actor import wire
from lambda_actor.check import random_policy
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.handler import trajectory_fields
from lambda_actor.rollout import roll_out
from lambda_actor.spaces import Spaces
from runtime.learner.batch import assemble_batch
from tests.environments import OtherSpaces, StatefulCounter

NUMBERS, PICTURE = spaces.Box(-9.0, 9.0, (2, 3)), spaces.Box(0, 255, (20, 24, 3), np.uint8)
GRID = spaces.Box(0, 255, (7, 7, 3), np.uint8)
ODD = spaces.Dict({
    "z": spaces.Discrete(4, start=-1), "a": NUMBERS, "m": spaces.Tuple((
        spaces.MultiDiscrete([[2, 3], [1, 4]]), spaces.MultiBinary((2, 2)), spaces.Dict({"last": spaces.Box(0, 1)})))})


def acting(observation_space: spaces.Space[Any]) -> ActorEnvironment:
    return ActorEnvironment(OtherSpaces(observation_space, spaces.Discrete(2)), "odd")


@pytest.mark.parametrize(("space", "size", "binary_parts"), [
    (spaces.Discrete(5, start=3), 5, ((0, 5),)),
    (spaces.MultiDiscrete([3, 2]), 5, ((0, 5),)),
    (spaces.MultiBinary(3), 3, ((0, 3),)),
    (spaces.Tuple((spaces.Discrete(2), NUMBERS, spaces.Discrete(3))), 11, ((0, 2), (8, 11))),
    (ODD, 6 + 10 + 4 + 1 + 4, ((6, 16), (16, 20), (21, 25))),
    (spaces.Dict({"direction": spaces.Discrete(4), "image": GRID}), 4 + 147, ((0, 4),)),
], ids=str)
def test_what_a_policy_sees_is_what_gymnasium_flattens(
    space: spaces.Space[Any], size: int, binary_parts: tuple[tuple[int, int], ...]
) -> None:
    environment = acting(space)
    assert environment.spaces == Spaces((size,), binary_parts=binary_parts, action_count=2)
    assert (environment.observation_shape, environment.spaces.is_binary) == (
        (size,), sum(end - start for start, end in binary_parts) == size)
    space.seed(1)
    for _ in range(5):
        observation = space.sample()
        frame = environment.to_frame(observation)
        np.testing.assert_array_equal(frame, np.float32(spaces.flatten(space, observation)))
        assert frame.dtype == np.float32
        for start, end in binary_parts:
            assert set(frame[start:end]) <= {0.0, 1.0}


@pytest.mark.parametrize(("environment_id", "size", "ones"), [
    ("FrozenLake-v1", 16, 1), ("Taxi-v4", 500, 1), ("CliffWalking-v1", 48, 1), ("Blackjack-v1", 45, 3)])
def test_gymnasiums_toys_are_played(environment_id: str, size: int, ones: int) -> None:
    environment = make_environment(environment_id)
    fragment = roll_out(environment, random_policy(environment), fragment_steps=20, seed=0, round_index=0, slot=0)
    assert fragment.observations.shape == (20, size)
    assert (fragment.observations.sum(1) == ones).all() and len(np.unique(fragment.observations, axis=0)) > 1


@pytest.mark.parametrize(("space", "counts", "action", "taken"), [
    (spaces.MultiDiscrete([3, 2]), (3, 2), [2, 1], [2, 1]),
    (spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[5, 0], [-1, 2]], dtype=np.int32), (2, 3, 1, 4), [1, 2, 0, 3],
     [[6, 2], [-1, 5]]),
    (spaces.MultiBinary(3), (2, 2, 2), [1, 0, 1], [1, 0, 1]),
    (spaces.MultiBinary((1, 2)), (2, 2), [1, 0], [[1, 0]]),
], ids=str)
def test_several_choices_reach_the_environment_in_its_own_shape(
    space: spaces.Space[Any], counts: tuple[int, ...], action: list[int], taken: list[Any]
) -> None:
    environment = ActorEnvironment(OtherSpaces(NUMBERS, space), "odd")
    assert environment.spaces == Spaces((6,), action_counts=counts)
    assert (environment.spaces.output_size, environment.spaces.action_shape) == (sum(counts), (len(counts),))
    found = environment.to_environment(np.array(action))
    assert found.tolist() == taken and space.contains(found)


@pytest.mark.parametrize("environment_id", ["tests.environments:make_locks", "tests.environments:make_switches"])
def test_several_choices_are_played_and_travel(environment_id: str) -> None:
    environment = make_environment(environment_id)
    fragment = roll_out(environment, random_policy(environment), fragment_steps=20, seed=0, round_index=0, slot=0)
    fields = trajectory_fields({"invocation_id": "i", "round_index": 0, "slot": 0, "policy_version": 0,
                                "episode_id": ""}, fragment)
    spaces_, again = environment.spaces, wire.decode(wire.encode(fragment.kind, fields), fragment.kind)
    assert (again["actions"].dtype, again["actions"].shape) == (np.int64, (20, 4))
    batch = assemble_batch([again], spaces_)
    np.testing.assert_array_equal(batch.actions[:, 0], fragment.actions)
    assert (fragment.actions < spaces_.action_counts).all() and len(np.unique(fragment.actions, axis=0)) > 1
    with pytest.raises(ValueError, match="actions 0 to 4"):
        assemble_batch([again | {"actions": again["actions"] * 0 + [0, 0, 0, 4]}], spaces_)


@pytest.mark.parametrize(("space", "advised"), [
    (spaces.Dict({"image": PICTURE, "speed": NUMBERS, "gear": spaces.Discrete(3)}), [["gear", "speed"], ["image"]]),
    (spaces.Dict({"side": spaces.Discrete(4), "image": GRID, "mission": spaces.Text(5)}), [["image", "side"]]),
    (spaces.Dict({"image": PICTURE, "mission": spaces.Text(5)}), [["image"]]),
    (spaces.Tuple((spaces.Sequence(NUMBERS), NUMBERS)), [[1]]),
], ids=str)
def test_what_is_refused_comes_with_a_wrapper_that_helps(space: spaces.Space[Any], advised: list[list[Any]]) -> None:
    with pytest.raises(UnusableEnvironmentError, match="gymnasium.wrappers.FilterObservation") as refusal:
        acting(space)
    for keys in advised:
        assert f"{{filter_keys: [{', '.join(map(str, keys))}]}}" in str(refusal.value)
        filtered = gymnasium.wrappers.FilterObservation(OtherSpaces(space, spaces.Discrete(2)), keys)
        environment = ActorEnvironment(filtered, "filtered")
        assert environment.to_frame(filtered.observation_space.sample()).shape == environment.spaces.observation_shape


def test_a_filter_keeps_nothing_between_steps() -> None:
    class Parted(StatefulCounter):
        observation_space = spaces.Dict({"count": spaces.Box(0.0, 99.0, (2,)), "text": spaces.Text(5)})

        def _observation(self) -> dict[str, object]:
            return {"count": super()._observation(), "text": "hello"}

    first, second = (ActorEnvironment(gymnasium.wrappers.FilterObservation(Parted(), ["count"]), "parted")
                     for _ in range(2))
    first.reset(1)
    first.step(np.zeros(1, np.float32))
    second.set_state(first.get_state())
    (frame, *here), (again, *there) = (one.step(np.ones(1, np.float32)) for one in (first, second))
    assert here == there and frame.tolist() == again.tolist()


def test_a_picture_alone_in_a_dict_is_pixels() -> None:
    environment = acting(spaces.Dict({"outer": spaces.Tuple((PICTURE,))}))
    assert environment.spaces == Spaces((3, 20, 24), (3, 20, 24), 1, action_count=2)
    picture = PICTURE.sample()
    np.testing.assert_array_equal(environment.to_frame({"outer": (picture,)}), picture.transpose(2, 0, 1))


@pytest.mark.parametrize("observation", [
    5, {"a": np.zeros(6)}, {"z": 7, "a": np.zeros((2, 3)), "m": 1},
    {"z": 0, "a": np.zeros(7), "m": (np.zeros((2, 2), int), np.zeros((2, 2)), {"last": np.zeros(1)})}], ids=str)
def test_an_observation_that_is_not_of_its_space_is_refused(observation: object) -> None:
    with pytest.raises(UnusableEnvironmentError, match="odd returned an observation .*; its observation space says D"):
        acting(ODD).to_frame(observation)
