"""Non-Box observations: flattened as Gymnasium does, and entries that are 0 or 1 do not change."""

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
from lambda_actor.handler import trajectory_fields
from lambda_actor.policy import Policy
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import Fragment, OpenEpisode, roll_out
from lambda_actor.spaces import Spaces
from runtime.learner.batch import assemble_batch
from tests.environments import OtherSpaces, policy_arrays

NUMBERS, PICTURE = spaces.Box(-9.0, 9.0, (2, 3)), spaces.Box(0, 255, (20, 24, 3), np.uint8)
GRID = spaces.Box(0, 255, (7, 7, 3), np.uint8)
ODD = spaces.Dict(
    {
        "z": spaces.Discrete(4, start=-1),
        "a": NUMBERS,
        "m": spaces.Tuple(
            (
                spaces.MultiDiscrete([[2, 3], [1, 4]]),
                spaces.MultiBinary((2, 2)),
                spaces.Dict({"last": spaces.Box(0, 1)}),
            )
        ),
    }
)


def acting(observation_space: spaces.Space[Any]) -> ActorEnvironment:
    return ActorEnvironment(OtherSpaces(observation_space, spaces.Discrete(2)), "odd")


@pytest.mark.parametrize(
    ("space", "size", "binary_parts"),
    [
        (spaces.Discrete(5, start=3), 5, ((0, 5),)),
        (spaces.Tuple((spaces.Discrete(2), NUMBERS, spaces.Discrete(3))), 11, ((0, 2), (8, 11))),
        (ODD, 6 + 10 + 4 + 1 + 4, ((6, 16), (16, 20), (21, 25))),
        (spaces.Dict({"direction": spaces.Discrete(4), "image": GRID}), 4 + 147, ((0, 4),)),
    ],
    ids=str,
)
def test_what_a_policy_sees_is_what_gymnasium_flattens(
    space: spaces.Space[Any], size: int, binary_parts: tuple[tuple[int, int], ...]
) -> None:
    environment = acting(space)
    assert environment.spaces == Spaces((size,), binary_parts=binary_parts, action_count=2)
    assert (environment.observation_shape, environment.spaces.is_binary) == (
        (size,),
        sum(end - start for start, end in binary_parts) == size,
    )
    space.seed(1)
    for _ in range(5):
        observation = space.sample()
        frame = environment.to_frame(observation)
        np.testing.assert_array_equal(frame, np.float32(spaces.flatten(space, observation)))
        assert frame.dtype == np.float32
        for start, end in binary_parts:
            assert set(frame[start:end]) <= {0.0, 1.0}


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
    assert (environment.spaces.output_size, environment.spaces.action_shape) == (
        sum(counts),
        (len(counts),),
    )
    found = environment.to_environment(np.array(action))
    assert found.tolist() == taken and space.contains(found)


@pytest.mark.parametrize("name", ["make_signs", "make_replayed_signs"])
def test_pictures_beside_numbers_are_played_travel_as_bytes_and_go_on_after_a_cut(
    name: str,
) -> None:
    def make() -> ActorEnvironment:
        return make_environment(f"tests.environments:{name}")

    def used() -> ActorEnvironment | ReplayedEnvironment:
        return make() if make().can_save_episode else ReplayedEnvironment(make, is_made_anew=False)

    def roll(steps: int, open_episode: OpenEpisode | None = None) -> Fragment:
        return roll_out(
            used(),
            policy,
            fragment_steps=steps,
            seed=0,
            round_index=0,
            slot=0,
            open_episode=open_episode,
        )

    environment = make()
    # Practically deterministic.
    policy = Policy(policy_arrays(spaces=environment.spaces, network="combined", gain=1e5))
    whole, first = roll(9), roll(4)
    fields = trajectory_fields(
        {"invocation_id": "i", "round_index": 0, "slot": 0, "policy_version": 0, "episode_id": ""},
        whole,
    )
    message = wire.encode(whole.kind, fields)
    assert whole.kind is wire.Kind.FRAME_TRAJECTORY and len(message) < 10 * 16 * 20 * 3, (
        "no float for any pixel"
    )
    batch = assemble_batch([wire.decode(message, whole.kind)], environment.spaces)
    pictures, vectors = apart(batch.observations[:, 0], environment.spaces)
    assert set(np.unique(pictures)) == {30, 220} and vectors[:, :11].argmax(1).tolist() == list(
        range(9)
    )
    np.testing.assert_allclose(np.abs(vectors[:, 11:]), [[0.01, 1.0]] * 9)
    second = roll(5, OpenEpisode.from_bytes(first.open_episode.to_bytes()))
    joined = [stack_frames(one.frames, one.observations) for one in (first, second)]
    np.testing.assert_array_equal(np.concatenate(joined), batch.observations[:, 0])
    np.testing.assert_array_equal(np.concatenate([first.actions, second.actions]), whole.actions)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Dict(),
        spaces.Box(0.0, 1.0, (0,)),
        spaces.Dict({one: spaces.Box(0, 255, (20, 24, 3), np.uint8) for one in "ab"}),
    ],
    ids=str,
)
def test_other_spaces_are_refused_with_what_can_be_done(space: Any) -> None:
    environment = gymnasium.make("CartPole-v1")
    environment.observation_space = space
    with pytest.raises(UnusableEnvironmentError, match=r"'odd'.*supported: Box.*FilterObserv"):
        ActorEnvironment(environment, "odd")
    environment.action_space = space
    environment.observation_space = spaces.Box(0.0, 1.0, (2,))
    with pytest.raises(UnusableEnvironmentError, match="action space is .*ActionWrapper"):
        ActorEnvironment(environment, "odd")
