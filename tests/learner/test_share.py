"""Learners that each train on part of a batch equal one that trains on all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.policy import default_network
from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.batch import select_trajectories
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.interfaces import Batch, Update
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from runtime.learner.share import Share
from tests.helpers import PATIENCE_S
from tests.learner.learning import COMBINED, DISCRETE, PIXELS, VECTORS, roll

pytestmark = pytest.mark.usefixtures("one_thread")
LEARNING_RATE = 1e-3


class Threads:
    """A group whose members are threads; sums in the order of their ranks."""

    def __init__(self, size: int) -> None:
        self._barrier, self._parts, self.size = (
            threading.Barrier(size, timeout=PATIENCE_S),
            dict[int, Any](),
            size,
        )

    def of(self, rank: int) -> Any:
        group = self

        class Member:
            size = group.size

            def __init__(self) -> None:
                self.rank = rank

            def sum(self, tensors: Sequence[torch.Tensor]) -> None:
                group._parts[rank] = [tensor.clone() for tensor in tensors]
                group._barrier.wait()
                found = [
                    torch.stack(parts).sum(0)
                    for parts in zip(*(group._parts[one] for one in range(group.size)), strict=True)
                ]
                group._barrier.wait()
                with torch.no_grad():
                    for tensor, total in zip(tensors, found, strict=True):
                        tensor.copy_(total)

        return Member()


def make(spaces: Spaces, **settings: Any) -> Ppo:
    section = PpoSettings(
        **{
            "minibatch_steps": 8,
            "learning_rate": LEARNING_RATE,
            "epochs": 2,
            "kl_coefficient": 0.2,
            "normalize_observations": spaces.vector_size > 0,
            **settings,
        }
    )
    return Ppo(
        LearnerSpec(
            section.model_copy(update={"kind": "ppo"}), spaces, default_network(spaces), seed=4
        )
    )


def assert_trained_alike(
    learners: Sequence[Any],
    found: Sequence[Sequence[Update]],
    alone: Any,
    expected: Sequence[Update],
) -> None:
    """Two learners that share batches are equal to the bit, and equal one with whole batches up to rounding."""
    first, second = (one.get_state() for one in learners)
    other = alone.get_state()
    for name, array in first.arrays.items():
        assert np.array_equal(array, second.arrays[name]), f"{name} differs between the two"
        # Adam divides a gradient by its own size, so for a tiny one, rounding errors move the parameter.
        np.testing.assert_allclose(
            array,
            other.arrays[name],
            rtol=1e-5,
            err_msg=name,
            atol=max(1e-5 * np.abs(array).max(initial=0.0), 1e-3 * LEARNING_RATE),
        )
    assert first.values == pytest.approx(other.values)
    for updates in found:
        for one, alike in zip(updates, expected, strict=True):
            assert vars(one.metrics) == pytest.approx(vars(alike.metrics), rel=1e-4, abs=1e-6)


def cut(batch: Batch, lengths: Sequence[int]) -> Batch:
    """Returns the batch with shorter trajectories: each is cut at its last step and padded with zeros."""
    steps = np.arange(len(batch.rewards))[:, None]
    is_step = steps < np.array(lengths)
    terminated = np.where(is_step, batch.terminated | (steps == np.array(lengths) - 1), False)
    mask = batch.bootstrap_mask & is_step & ~terminated
    kept = mask.T[batch.bootstrap_mask.T]
    arrays = {
        name: getattr(batch, name)
        * is_step.reshape(*is_step.shape, *[1] * (getattr(batch, name).ndim - 2))
        for name in ("observations", "actions", "log_probs", "rewards")
    }
    return replace(
        batch,
        lengths=np.array(lengths),
        terminated=terminated,
        bootstrap_mask=mask,
        bootstrap_observations=batch.bootstrap_observations[kept],
        **{name: array.astype(getattr(batch, name).dtype) for name, array in arrays.items()},
    )


def train_together(make_one: Callable[[], Any], spaces: Spaces) -> Any:
    """Trains two learners that share three batches, and compares them with one that trains alone."""
    alone, batches, expected = make_one(), list[Batch](), list[Update]()
    for seed in range(3):
        batch = cut(roll(alone.weights(), spaces, trajectories=4, seed=seed), [12, 7, 12, 2])
        batches.append(batch)
        expected.append(alone.update(batch, progress=seed / 10))
    threads, learners = Threads(2), [make_one(), make_one()]

    def train(rank: int) -> list[Update]:
        columns, found, learner = np.array([[0, 2], [1, 3]][rank]), [], learners[rank]
        for seed, batch in enumerate(batches):
            learner.share = Share(
                threads.of(rank), columns, batch.lengths, device=torch.device("cpu")
            )
            own = select_trajectories(batch, columns)
            found.append(learner.update(own, progress=seed / 10))
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    assert_trained_alike(learners, found, alone, expected)
    return alone


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, PIXELS, COMBINED])
@pytest.mark.parametrize("settings", [{}, {"normalize_rewards": True}])
def test_they_train_as_one_does_round_after_round(spaces: Spaces, settings: dict[str, Any]) -> None:
    train_together(lambda: make(spaces, **settings), spaces)


@pytest.mark.parametrize("spaces", [VECTORS, PIXELS])
@pytest.mark.parametrize("minibatch_steps", [12, 24, 1000])
@pytest.mark.parametrize("kind", ["impala", "impact"])
def test_off_policy_they_train_as_one_does(kind: str, minibatch_steps: int, spaces: Spaces) -> None:
    """Also if a learner has no fragment of a minibatch, and if the target network is renewed in between."""

    def made() -> Any:
        rewards = {"normalize_rewards": True, "normalize_observations": spaces.vector_size > 0}
        section = (
            ImpalaSettings(minibatch_steps=minibatch_steps, **rewards)
            if kind == "impala"
            else ImpactSettings(
                minibatch_steps=minibatch_steps, buffer_batches=1, uses_max=1, **rewards
            )
        )
        algorithm = section.model_copy(update={"kind": kind, "staleness_max": 9})
        return make_learner(
            LearnerSpec(algorithm, spaces, default_network(spaces), seed=4), device="cpu"
        )

    alone = train_together(made, spaces)
    assert kind == "impala" or minibatch_steps == 1000 or alone.steps_since_target < 33 * 3
