"""Learners that each train on part of a batch equal one that trains on all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.learner.batch import select_trajectories
from runtime.learner.interfaces import Batch, Update
from runtime.learner.share import Share
from tests.helpers import PATIENCE_S
from tests.learner.learning import COMBINED, DISCRETE, PIXELS, VECTORS, make, ragged, roll

pytestmark = pytest.mark.usefixtures("one_thread")
LEARNING_RATE = 1e-3


class Member:
    """A thread of a group that sums in the order of ranks."""

    def __init__(self, rank: int, barrier: threading.Barrier, parts: dict[int, Any]) -> None:
        self.rank, self.size = rank, barrier.parties
        self.barrier, self._parts = barrier, parts

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        self._parts[self.rank] = [tensor.clone() for tensor in tensors]
        self.barrier.wait()
        ranks = [self._parts[rank] for rank in range(self.size)]
        totals = [torch.stack(parts).sum(0) for parts in zip(*ranks, strict=True)]
        self.barrier.wait()
        for tensor, total in zip(tensors, totals, strict=True):
            tensor.detach().copy_(total)


def members(size: int) -> list[Member]:
    """Returns a group whose members are threads."""
    barrier, parts = threading.Barrier(size, timeout=PATIENCE_S), dict[int, Any]()
    return [Member(rank, barrier, parts) for rank in range(size)]


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


def train_together(
    make_one: Callable[[], Any], spaces: Spaces, lengths: Sequence[int] = (12, 7, 12, 2)
) -> Any:
    """Trains two learners that share three batches, and compares them with one that trains alone."""
    alone, batches, expected = make_one(), list[Batch](), list[Update]()
    for seed in range(3):
        rolled = roll(alone.weights(), spaces, steps=max(lengths), trajectories=4, seed=seed)
        batch, _ = ragged(rolled, list(lengths))
        batches.append(batch)
        expected.append(alone.update(batch, progress=seed / 10))
    group, learners = members(2), [make_one(), make_one()]

    def train(rank: int) -> list[Update]:
        columns, found, learner = np.array([[0, 2], [1, 3]][rank]), [], learners[rank]
        device = torch.device("cpu")
        try:
            for seed, batch in enumerate(batches):
                learner.share = Share(group[rank], columns, batch.lengths, device=device)
                own = select_trajectories(batch, columns)
                found.append(learner.update(own, progress=seed / 10))
        except BaseException:
            group[rank].barrier.abort()
            raise
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    assert_trained_alike(learners, found, alone, expected)
    return alone


PPO = {"minibatch_steps": 8, "learning_rate": LEARNING_RATE, "epochs": 2, "kl_coefficient": 0.2}


@pytest.mark.parametrize(
    ("spaces", "normalize_rewards"),
    [(VECTORS, True), (DISCRETE, False), (PIXELS, True), (COMBINED, False)],
)
def test_they_train_as_one_does_round_after_round(spaces: Spaces, normalize_rewards: bool) -> None:
    train_together(lambda: make("ppo", spaces, normalize_rewards=normalize_rewards, **PPO), spaces)


def test_a_minibatch_in_blocks_trains_as_two_that_fit() -> None:
    """Alone, a minibatch of 2,500 samples is computed in blocks; each of the two has half of it."""
    options = PPO | {"minibatch_steps": 2500}
    train_together(lambda: make("ppo", VECTORS, **options), VECTORS, (1250, 1245, 3, 2))


@pytest.mark.parametrize(
    ("minibatch_steps", "spaces"), [(12, VECTORS), (24, VECTORS), (1000, VECTORS), (12, PIXELS)]
)
@pytest.mark.parametrize("kind", ["impala", "impact"])
def test_off_policy_they_train_as_one_does(kind: str, minibatch_steps: int, spaces: Spaces) -> None:
    """Also if a learner has no fragment of a minibatch, and if the target network is renewed in between."""
    options = {"buffer_batches": 1, "uses_max": 1} if kind == "impact" else {}
    options |= {"minibatch_steps": minibatch_steps, "normalize_rewards": True}
    alone = train_together(lambda: make(kind, spaces, **options), spaces)
    assert kind == "impala" or minibatch_steps == 1000 or alone.steps_since_target < 33 * 3
