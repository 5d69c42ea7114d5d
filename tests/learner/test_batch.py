"""From trajectories to one batch, of arrays, or of tensors as a simulator on the learner's device leaves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.frames import pack_frames
from lambda_actor.spaces import Spaces
from runtime.learner.batch import assemble_batch, select_trajectories
from runtime.learner.interfaces import Batch, Update
from runtime.learner.share import Share
from tests.learner.learning import MASKED, SEVERAL, VECTORS, make, ragged, roll
from tests.learner.test_share import PPO, members

pytestmark = pytest.mark.usefixtures("one_thread")
BY_STEP = ("observations", "actions", "log_probs", "rewards")


def trajectory(alone: Batch) -> dict[str, Any]:
    """Returns a batch of one trajectory as its actor sends it. Decoded messages are read-only."""
    names = (
        *BY_STEP,
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
@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [2, 0], [1], [3, 1, 2, 0]])
def test_a_batch_is_its_trajectories_side_by_side(spaces: Spaces, columns: list[int]) -> None:
    batch, alone = ragged(
        roll(make("ppo", spaces).weights(), spaces, trajectories=4), (12, 5, 9, 12)
    )
    messages = [trajectory(alone[column]) for column in columns]
    selected = select_trajectories(batch, np.array(columns))
    made = assemble_batch(messages, spaces)
    steps = int(made.lengths.max())
    for name, array in vars(made).items():
        expected = getattr(selected, name)
        if np.shape(expected)[:1] == (12,):
            assert not expected[steps:].any()
            expected = expected[:steps]
        np.testing.assert_array_equal(array, expected, err_msg=name)
        assert array is None or array.flags.writeable
    for column, message in enumerate(messages):
        length = len(message["rewards"])
        for name in BY_STEP:
            np.testing.assert_array_equal(getattr(made, name)[:length, column], message[name])
        assert not made.rewards[length:, column].any()


def test_frames_are_stacked_as_their_indices_say() -> None:
    random, spaces = np.random.default_rng(0), Spaces((6, 20, 18), (2, 20, 18), 3, action_count=4)
    messages, stacks, bootstraps = [], [], []
    for cuts in ([1], [], [1, 3]):
        frames = random.integers(0, 256, (5, 2, 20, 18), np.uint8)
        indices, following = (random.integers(0, 5, (size, 3), np.int32) for size in (4, len(cuts)))
        named = {"observation_frames": indices, "bootstrap_frames": following}
        rest = {name: np.zeros(4) for name in ("log_probs", "rewards", "actions")}
        ends = {"terminated": np.zeros(4, np.bool_), "bootstrap_steps": np.array(cuts, np.int64)}
        messages.append({**pack_frames(frames), **named, **rest, **ends, "policy_version": 7})
        stacks.append(frames[indices].reshape(4, 6, 20, 18))
        bootstraps.append(frames[following].reshape(-1, 6, 20, 18))
    batch = assemble_batch(messages, spaces)
    np.testing.assert_array_equal(batch.observations, np.stack(stacks, 1))
    np.testing.assert_array_equal(batch.bootstrap_observations, np.concatenate(bootstraps))
    assert np.argwhere(batch.bootstrap_mask.T).tolist() == [[0, 1], [2, 1], [2, 3]]


def on_device(batch: Batch) -> Batch:
    """Returns the batch as worlds on a device make it."""
    by_trajectory = ("policy_versions", "lengths")
    fields: dict[str, Any] = {
        name: array if name in by_trajectory or array is None else torch.from_numpy(array.copy())
        for name, array in vars(batch).items()
    }
    return Batch(**fields)


def trained(batch: Batch, *, is_alone: bool, **settings: Any) -> tuple[Any, Update]:
    learner = make("ppo", VECTORS, **PPO, **settings)
    columns, device = np.arange(len(batch.lengths)), torch.device("cpu")
    if not is_alone:
        learner.share = Share(members(1)[0], columns, batch.lengths, device=device)
    return learner, learner.update(batch, progress=0.25)


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_observations": False}, {"normalize_rewards": True}],
)
def test_a_batch_of_tensors_trains_the_same(settings: dict[str, Any], is_alone: bool) -> None:
    _, alone = ragged(roll(make().weights(), VECTORS, trajectories=5), [12] * 5)
    plain = assemble_batch([trajectory(one) for one in alone], VECTORS)
    expected, before = trained(plain, is_alone=is_alone, **settings)
    learner, after = trained(on_device(plain), is_alone=is_alone, **settings)
    assert all(isinstance(one, torch.Tensor) for one in vars(after.samples).values())
    for name, array in vars(before.samples).items():
        np.testing.assert_allclose(
            getattr(after.samples, name), array, rtol=1e-5, atol=1e-5, err_msg=name
        )
    assert vars(after.metrics) == pytest.approx(vars(before.metrics), rel=1e-4, abs=1e-6)
    state = learner.get_state().arrays
    for name, array in expected.get_state().arrays.items():
        np.testing.assert_allclose(state[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
