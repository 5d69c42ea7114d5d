"""A batch of tensors, as left by a simulator on the learner's device, trains like the same batch of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runtime.gmi.trainer import _without_samples
from runtime.learner.batch import assemble_batch
from runtime.learner.ppo import Ppo
from runtime.learner.share import Share
from runtime.ports.learning import Batch, Update
from tests.learner.learning import VECTORS, roll
from tests.learner.test_share import Threads, make

pytestmark = pytest.mark.usefixtures("one_thread")
ON_DEVICE = ("observations", "actions", "log_probs", "rewards", "bootstrap_observations")


def trajectories(batch: Batch) -> list[dict[str, Any]]:
    """Returns a batch's fields as actors send them."""
    after = np.split(batch.bootstrap_observations, np.cumsum(batch.bootstrap_mask.sum(0))[:-1])
    return [
        {
            **{name: getattr(batch, name)[:, column] for name in (*ON_DEVICE[:4], "terminated")},
            "bootstrap_steps": np.flatnonzero(batch.bootstrap_mask[:, column]),
            "bootstrap_observations": after[column],
            "policy_version": batch.policy_versions[column],
        }
        for column in range(len(batch.lengths))
    ]


def tensors(one: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(array) if name in ON_DEVICE else array for name, array in one.items()
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
def test_it_trains_the_same(settings: dict[str, Any], clip_rewards: bool) -> None:
    rolled = trajectories(roll(make(VECTORS).weights(), VECTORS, steps=12, trajectories=5))
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


def test_what_an_instance_tells_of_it_are_arrays_without_samples() -> None:
    rolled = trajectories(roll(make(VECTORS).weights(), VECTORS, steps=12, trajectories=5))
    plain, batch = (
        assemble_batch(one, VECTORS) for one in (rolled, [tensors(one) for one in rolled])
    )
    expected, found = (vars(_without_samples(trained(one)[1]).samples) for one in (plain, batch))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        name: (array.shape, array.dtype) for name, array in expected.items()
    }
    assert all(isinstance(array, np.ndarray) and not array.size for array in found.values())
