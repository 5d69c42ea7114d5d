"""From trajectories to one batch: the position of each number."""

from __future__ import annotations

import numpy as np
import pytest

from lambda_actor.errors import CorruptedMessageError
from lambda_actor.frames import pack_frames
from lambda_actor.spaces import Spaces
from runtime.learner.batch import assemble_batch, select_trajectories

VECTORS = Spaces((2,), action_size=3)


def trajectory(
    label: int,
    *,
    steps: int = 4,
    bootstrap_steps: tuple[int, ...] = (),
    version: int = 7,
    observation_size: int = 2,
    action_size: int = 3,
) -> dict[str, np.ndarray]:
    """Returns a TRAJECTORY message whose numbers encode their origin: label·100 + step (+ column / 10)."""
    rows = label * 100.0 + np.arange(steps)
    return {
        "policy_version": np.int64(version),
        "slot": np.int64(label),
        "observations": (rows[:, None] + np.arange(observation_size) / 10).astype(np.float32),
        "actions": (-rows[:, None] - np.arange(action_size) / 10).astype(np.float32),
        "log_probs": (rows / 1000).astype(np.float32),
        "rewards": rows * 2,
        "terminated": np.array(
            [step % 2 == label % 2 and step not in bootstrap_steps for step in range(steps)]
        ),
        "truncated": np.zeros(steps, np.bool_),
        "bootstrap_steps": np.array(bootstrap_steps, np.int64),
        "bootstrap_observations": np.array(
            [[label * 1000 + step, 0.5] for step in bootstrap_steps], np.float32
        ).reshape(-1, observation_size),
    }


def test_steps_run_down_and_trajectories_across() -> None:
    batch = assemble_batch([trajectory(label) for label in (1, 2, 3)], VECTORS)
    assert batch.observations.shape == (4, 3, 2)
    assert batch.actions.shape == (4, 3, 3)
    for name in ("log_probs", "rewards", "terminated", "bootstrap_mask"):
        assert getattr(batch, name).shape == (4, 3)
    for step in range(4):
        for column, label in enumerate((1, 2, 3)):
            number = label * 100 + step
            np.testing.assert_allclose(
                batch.observations[step, column], [number, number + 0.1], rtol=1e-6
            )
            np.testing.assert_allclose(
                batch.actions[step, column], [-number, -number - 0.1, -number - 0.2], rtol=1e-6
            )
            assert batch.log_probs[step, column] == np.float32(number / 1000)
            assert batch.rewards[step, column] == number * 2
            assert batch.terminated[step, column] == (step % 2 == label % 2)


def test_the_order_given_is_kept() -> None:
    """The caller sorts by slot; nothing is sorted again."""
    batch = assemble_batch([trajectory(label) for label in (3, 1, 2)], VECTORS)
    np.testing.assert_array_equal(batch.rewards[0], [600.0, 200.0, 400.0])


def test_bootstrap_observations_lie_in_the_order_of_trajectories_and_then_steps() -> None:
    steps = {1: (1, 3), 2: (), 3: (0, 2, 3), 4: (3,)}
    batch = assemble_batch(
        [trajectory(label, bootstrap_steps=where) for label, where in steps.items()], VECTORS
    )
    expected_mask = [
        [False, False, True, False],
        [True, False, False, False],
        [False, False, True, False],
        [True, False, True, True],
    ]
    np.testing.assert_array_equal(batch.bootstrap_mask, expected_mask)
    np.testing.assert_array_equal(
        batch.bootstrap_observations[:, 0], [1001, 1003, 3000, 3002, 3003, 4003]
    )
    places = [
        (column, step)
        for column in range(4)
        for step in range(4)
        if batch.bootstrap_mask[step, column]
    ]
    assert [int(o) for o in batch.bootstrap_observations[:, 0]] == [
        (c + 1) * 1000 + s for c, s in places
    ]


def test_a_batch_where_nothing_is_cut() -> None:
    batch = assemble_batch([trajectory(1), trajectory(2)], VECTORS)
    assert not batch.bootstrap_mask.any()
    assert batch.bootstrap_observations.shape == (0, 2)


def test_types_version_and_number_of_steps() -> None:
    batch = assemble_batch(
        [trajectory(label, steps=5, bootstrap_steps=(4,)) for label in (1, 2)], VECTORS
    )
    assert batch.policy_versions.tolist() == [7, 7]
    assert batch.env_steps == 10
    assert {name: array.dtype.name for name, array in vars(batch).items() if array is not None} == {
        "policy_versions": "int64",
        "lengths": "int64",
        "observations": "float32",
        "actions": "float32",
        "log_probs": "float32",
        "rewards": "float64",
        "terminated": "bool",
        "bootstrap_mask": "bool",
        "bootstrap_observations": "float32",
    }


def test_read_only_messages_give_a_batch_of_its_own() -> None:
    """Decoded messages are views of received bytes, which the learner must not receive."""
    message = trajectory(1, bootstrap_steps=(3,))
    for array in message.values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    batch = assemble_batch([message], VECTORS)
    assert batch.action_masks is None
    for name, array in vars(batch).items():
        if name == "action_masks":
            continue
        assert array.flags.writeable and not np.shares_memory(array, message.get(name, np.empty(0)))


def test_each_trajectory_keeps_its_version() -> None:
    batch = assemble_batch(
        [trajectory(1, version=8), trajectory(2, version=7), trajectory(3, version=8)], VECTORS
    )
    assert batch.policy_versions.tolist() == [8, 7, 8]


def test_rewards_are_clipped_to_their_sign_where_asked() -> None:
    message = trajectory(1) | {"rewards": np.array([-3.0, 0.0, 0.25, 7.0])}
    assert assemble_batch([message], VECTORS, clip_rewards=True).rewards[:, 0].tolist() == [
        -1.0,
        0.0,
        1.0,
        1.0,
    ]
    assert assemble_batch([message], VECTORS).rewards[:, 0].tolist() == [-3.0, 0.0, 0.25, 7.0]
    assert message["rewards"].tolist() == [-3.0, 0.0, 0.25, 7.0]


def test_shorter_trajectories_are_padded() -> None:
    trajectories = [
        trajectory(1, bootstrap_steps=(3,)),
        trajectory(2, steps=2),
        trajectory(3, steps=3),
    ]
    batch = assemble_batch(trajectories, VECTORS)
    assert batch.lengths.tolist() == [4, 2, 3]
    assert batch.env_steps == 9
    assert batch.is_step.T.tolist() == [
        [True] * 4,
        [True, True, False, False],
        [True, True, True, False],
    ]
    for column, length in enumerate(batch.lengths):
        alone = assemble_batch([trajectories[column]], VECTORS)
        for name in (
            "observations",
            "actions",
            "log_probs",
            "rewards",
            "terminated",
            "bootstrap_mask",
        ):
            np.testing.assert_array_equal(
                getattr(batch, name)[:length, column], getattr(alone, name)[:, 0]
            )
            assert not getattr(batch, name)[length:, column].any()
    np.testing.assert_array_equal(select_trajectories(batch, np.array([2, 0])).lengths, [3, 4])


def test_shorter_trajectories_of_frames_are_padded() -> None:
    by_step = ("actions", "observation_frames", "log_probs", "rewards", "terminated")
    short = {
        name: array[:2] if name in by_step else array for name, array in frame_trajectory(2).items()
    }
    batch = assemble_batch([short, frame_trajectory(1)], PIXELS)
    np.testing.assert_array_equal(
        batch.observations[:2, 0], assemble_batch([short], PIXELS).observations[:, 0]
    )
    assert not batch.observations[2:, 0].any()


# Discrete actions and pixels

PIXELS = Spaces((6, 20, 18), frame_shape=(2, 20, 18), frame_stack=3, action_count=4)


def frame_trajectory(
    label: int, *, bootstrap_frames: tuple[tuple[int, ...], ...] = ()
) -> dict[str, np.ndarray]:
    """Frame u is filled with 10·label + u, its second channel with one hundred more."""
    frames = np.zeros((5, 2, 20, 18), np.uint8)
    frames += (10 * label + np.arange(5, dtype=np.uint8))[:, None, None, None]
    frames[:, 1] += 100
    message = trajectory(label, bootstrap_steps=(1, 3)[: len(bootstrap_frames)])
    del message["observations"], message["bootstrap_observations"]
    return (
        message
        | pack_frames(frames)
        | {
            "actions": np.array([0, 3, 1, 2]),
            "observation_frames": np.array([[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3]], np.int32),
            "bootstrap_frames": np.array(bootstrap_frames, np.int32).reshape(-1, 3),
        }
    )


def test_frames_are_stacked_the_oldest_first() -> None:
    batch = assemble_batch(
        [
            frame_trajectory(1, bootstrap_frames=((1, 2, 3),)),
            frame_trajectory(2),
            frame_trajectory(3, bootstrap_frames=((0, 0, 4), (2, 3, 4))),
        ],
        PIXELS,
    )
    assert batch.observations.shape == (4, 3, 6, 20, 18) and batch.observations.dtype == np.uint8
    assert batch.bootstrap_observations.shape == (3, 6, 20, 18)
    assert batch.actions.shape == (4, 3) and batch.actions.dtype == np.int64
    for column, label in enumerate((1, 2, 3)):
        for step, named in enumerate(([0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3])):
            channels = [10 * label + u + extra for u in named for extra in (0, 100)]
            np.testing.assert_array_equal(batch.observations[step, column, :, 7, 5], channels)
            assert (
                batch.observations[step, column] == batch.observations[step, column, :, :1, :1]
            ).all()
    np.testing.assert_array_equal(
        batch.bootstrap_observations[:, ::2, 0, 0], [[11, 12, 13], [30, 30, 34], [32, 33, 34]]
    )
    assert np.argwhere(batch.bootstrap_mask.T).tolist() == [[0, 1], [2, 1], [2, 3]]


def test_a_stack_of_frames_that_are_not_there_is_refused() -> None:
    message = frame_trajectory(1)
    message["observation_frames"][2, 1] = 5
    with pytest.raises(CorruptedMessageError, match="5"):
        assemble_batch([message], PIXELS)


def test_selected_trajectories_take_their_bootstraps_along() -> None:
    steps = {1: (1, 3), 2: (), 3: (0, 2, 3), 4: (3,)}
    whole = assemble_batch(
        [trajectory(label, bootstrap_steps=where, version=label) for label, where in steps.items()],
        VECTORS,
    )
    for columns in ([2, 0], [1], [3, 1, 2, 0]):
        part = select_trajectories(whole, np.array(columns))
        again = assemble_batch(
            [
                trajectory(column + 1, bootstrap_steps=steps[column + 1], version=column + 1)
                for column in columns
            ],
            VECTORS,
        )
        for name, array in vars(again).items():
            np.testing.assert_array_equal(getattr(part, name), array, err_msg=name)
            assert not np.shares_memory(getattr(part, name), getattr(whole, name))
