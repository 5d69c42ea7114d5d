"""From trajectories to one batch: where each number must lie."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.learner.batch import assemble_batch


def trajectory(label: int, *, steps: int = 4, bootstrap_steps: tuple[int, ...] = (), version: int = 7,
               observation_size: int = 2, action_size: int = 3) -> dict[str, np.ndarray]:
    """A TRAJECTORY message whose numbers tell where they come from: label·100 + step (+ column / 10)."""
    rows = label * 100.0 + np.arange(steps)
    return {
        "policy_version": np.int64(version),
        "slot": np.int64(label),
        "observations": (rows[:, None] + np.arange(observation_size) / 10).astype(np.float32),
        "actions": (-rows[:, None] - np.arange(action_size) / 10).astype(np.float32),
        "log_probs": (rows / 1000).astype(np.float32),
        "rewards": rows * 2,
        "terminated": np.array([step % 2 == label % 2 and step not in bootstrap_steps for step in range(steps)]),
        "truncated": np.zeros(steps, np.bool_),
        "bootstrap_steps": np.array(bootstrap_steps, np.int64),
        "bootstrap_observations": np.array(
            [[label * 1000 + step, 0.5] for step in bootstrap_steps], np.float32).reshape(-1, observation_size),
    }


def test_steps_run_down_and_trajectories_across() -> None:
    batch = assemble_batch([trajectory(label) for label in (1, 2, 3)])
    assert batch.observations.shape == (4, 3, 2)
    assert batch.actions.shape == (4, 3, 3)
    for name in ("log_probs", "rewards", "terminated", "bootstrap_mask"):
        assert getattr(batch, name).shape == (4, 3)
    for step in range(4):
        for column, label in enumerate((1, 2, 3)):
            number = label * 100 + step
            np.testing.assert_allclose(batch.observations[step, column], [number, number + 0.1], rtol=1e-6)
            np.testing.assert_allclose(batch.actions[step, column], [-number, -number - 0.1, -number - 0.2], rtol=1e-6)
            assert batch.log_probs[step, column] == np.float32(number / 1000)
            assert batch.rewards[step, column] == number * 2
            assert batch.terminated[step, column] == (step % 2 == label % 2)


def test_the_order_given_is_kept() -> None:
    """Slot order is the caller's doing; nothing is sorted again."""
    batch = assemble_batch([trajectory(label) for label in (3, 1, 2)])
    np.testing.assert_array_equal(batch.rewards[0], [600.0, 200.0, 400.0])


def test_bootstrap_observations_lie_in_the_order_of_trajectories_and_then_steps() -> None:
    steps = {1: (1, 3), 2: (), 3: (0, 2, 3), 4: (3,)}
    batch = assemble_batch([trajectory(label, bootstrap_steps=where) for label, where in steps.items()])
    expected_mask = [[False, False, True, False], [True, False, False, False], [False, False, True, False],
                     [True, False, True, True]]
    np.testing.assert_array_equal(batch.bootstrap_mask, expected_mask)
    np.testing.assert_array_equal(batch.bootstrap_observations[:, 0], [1001, 1003, 3000, 3002, 3003, 4003])
    places = [(column, step) for column in range(4) for step in range(4) if batch.bootstrap_mask[step, column]]
    assert [int(o) for o in batch.bootstrap_observations[:, 0]] == [(c + 1) * 1000 + s for c, s in places]


def test_a_batch_where_nothing_is_cut() -> None:
    batch = assemble_batch([trajectory(1), trajectory(2)])
    assert not batch.bootstrap_mask.any()
    assert batch.bootstrap_observations.shape == (0, 2)


def test_types_version_and_number_of_steps() -> None:
    batch = assemble_batch([trajectory(label, steps=5, bootstrap_steps=(4,)) for label in (1, 2)])
    assert batch.policy_version == 7 and isinstance(batch.policy_version, int)
    assert batch.env_steps == 10
    assert {name: array.dtype.name for name, array in vars(batch).items() if name != "policy_version"} == {
        "observations": "float32", "actions": "float32", "log_probs": "float32", "rewards": "float64",
        "terminated": "bool", "bootstrap_mask": "bool", "bootstrap_observations": "float32"}


def test_read_only_messages_give_a_batch_of_its_own() -> None:
    """Decoded messages are views of received bytes; the learner may not be handed those."""
    message = trajectory(1, bootstrap_steps=(3,))
    for array in message.values():
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    batch = assemble_batch([message])
    for name, array in vars(batch).items():
        if name != "policy_version":
            assert array.flags.writeable and not np.shares_memory(array, message.get(name, np.empty(0)))


def test_trajectories_of_several_versions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"7.*8"):
        assemble_batch([trajectory(1, version=7), trajectory(2, version=8)])


def test_no_trajectory_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        assemble_batch([])


@pytest.mark.parametrize("other", [{"steps": 5}, {"observation_size": 3}, {"action_size": 1}])
def test_trajectories_of_different_shape_are_refused(other: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        assemble_batch([trajectory(1), trajectory(2, **other)])
