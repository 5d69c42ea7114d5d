"""From trajectories to one batch, of arrays, or of tensors as a simulator on the learner's device leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.frames import pack_frames
from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec
from runtime.learner.batch import assemble_batch, select_trajectories
from runtime.learner.interfaces import Batch, Update
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from runtime.learner.share import Share
from tests.learner.learning import MASKED, SEVERAL, VECTORS, ragged, roll
from tests.learner.test_share import Threads, make

pytestmark = pytest.mark.usefixtures("one_thread")
ON_DEVICE = ("observations", "actions", "log_probs", "rewards", "bootstrap_observations")


def trajectory(alone: Batch) -> dict[str, Any]:
    """Returns a batch of one trajectory as its actor sends it. Decoded messages are read-only."""
    names = (
        *ON_DEVICE[:4],
        "terminated",
        *(["action_masks"] if alone.action_masks is not None else []),
    )
    message = {
        **{name: getattr(alone, name)[:, 0] for name in names},
        "bootstrap_steps": np.flatnonzero(alone.bootstrap_mask),
        "bootstrap_observations": alone.bootstrap_observations,
        "policy_version": alone.policy_versions[0],
    }
    for array in message.values():
        array.setflags(write=False)
    return message


@pytest.mark.parametrize("spaces", [VECTORS, SEVERAL, MASKED])
def test_a_batch_is_its_trajectories_side_by_side(spaces: Spaces) -> None:
    learner = Ppo(LearnerSpec(PpoSettings(kind="ppo", normalize_observations=True), spaces))
    batch, alone = ragged(roll(learner.weights(), spaces, trajectories=4), (12, 5, 9, 12))
    messages = [trajectory(one) for one in alone]
    batch.policy_versions[:] = [message["policy_version"] for message in messages]
    for columns in ([0, 1, 2, 3], [2, 0], [1], [3, 1, 2, 0]):
        made = assemble_batch([messages[column] for column in columns], spaces)
        selected = select_trajectories(batch, np.array(columns))
        steps = int(made.lengths.max())
        for name, array in vars(made).items():
            expected = getattr(selected, name)
            if name not in (
                "policy_versions",
                "lengths",
                "bootstrap_observations",
                "action_masks",
            ) or (name == "action_masks" and array is not None):
                assert not expected[steps:].any()
                expected = expected[:steps]
            np.testing.assert_array_equal(array, expected, err_msg=name)
            assert array is None or array.flags.writeable
        for column, message in enumerate(messages[column] for column in columns):
            length = len(message["rewards"])
            np.testing.assert_array_equal(
                made.observations[:length, column], message["observations"]
            )
            assert not made.rewards[length:, column].any()


PIXELS = Spaces((6, 20, 18), frame_shape=(2, 20, 18), frame_stack=3, action_count=4)


def frame_trajectory(
    label: int, *, bootstrap_frames: tuple[tuple[int, ...], ...] = ()
) -> dict[str, np.ndarray]:
    """Frame u is filled with 10·label + u, its second channel with one hundred more."""
    frames = np.zeros((5, 2, 20, 18), np.uint8)
    frames += (10 * label + np.arange(5, dtype=np.uint8))[:, None, None, None]
    frames[:, 1] += 100
    return pack_frames(frames) | {
        "policy_version": np.int64(7),
        "log_probs": np.zeros(4, np.float32),
        "rewards": np.zeros(4),
        "terminated": np.zeros(4, np.bool_),
        "bootstrap_steps": np.array((1, 3)[: len(bootstrap_frames)], np.int64),
        "actions": np.array([0, 3, 1, 2]),
        "observation_frames": np.array([[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3]], np.int32),
        "bootstrap_frames": np.array(bootstrap_frames, np.int32).reshape(-1, 3),
    }


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


def tensors(one: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(array.copy()) if name in ON_DEVICE else array
        for name, array in one.items()
    }


def trained(batch: Batch, **settings: Any) -> tuple[Ppo, Update]:
    learner = make(VECTORS, **settings)
    learner.share = Share(
        Threads(1).of(0), np.arange(len(batch.lengths)), batch.lengths, device=torch.device("cpu")
    )
    return learner, learner.update(batch, progress=0.25)


@pytest.mark.parametrize("clip_rewards", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_observations": False}, {"normalize_rewards": True}],
)
def test_a_batch_of_tensors_trains_the_same(settings: dict[str, Any], clip_rewards: bool) -> None:
    _, alone = ragged(roll(make(VECTORS).weights(), VECTORS, trajectories=5), [12] * 5)
    rolled = [trajectory(one) for one in alone]
    plain = assemble_batch(rolled, VECTORS, clip_rewards=clip_rewards)
    batch: Any = assemble_batch(
        [tensors(one) for one in rolled], VECTORS, clip_rewards=clip_rewards
    )
    for name, array in vars(plain).items():
        found = getattr(batch, name)
        if name == "action_masks":
            assert found is None
            continue
        assert isinstance(found, torch.Tensor) == (name not in ("policy_versions", "lengths")), name
        np.testing.assert_array_equal(np.asarray(found), array, err_msg=name)
        assert np.asarray(found).dtype == array.dtype, name
    (expected, before), (learner, after) = trained(plain, **settings), trained(batch, **settings)
    assert all(isinstance(one, torch.Tensor) for one in vars(after.samples).values())
    for name, array in vars(before.samples).items():
        found = np.asarray(getattr(after.samples, name))
        assert found.dtype == array.dtype, name
        np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5, err_msg=name)
    for name, figure in vars(before.metrics).items():
        assert getattr(after.metrics, name) == pytest.approx(figure, rel=1e-4, abs=1e-6), name
    for name, array in expected.get_state().arrays.items():
        np.testing.assert_allclose(
            learner.get_state().arrays[name], array, rtol=1e-4, atol=1e-5, err_msg=name
        )
