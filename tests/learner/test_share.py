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


def together(
    batch: Batch,
    parts: Sequence[Sequence[int]],
    spaces: Spaces,
    then: Callable[[Ppo, Batch], Any],
    **settings: Any,
) -> tuple[list[Ppo], list[Any]]:
    """Runs learners at the same time, each with these trajectories of a batch."""
    threads, learners = Threads(len(parts)), [make(spaces, **settings) for _ in parts]

    def do(rank: int) -> Any:
        columns = np.array(parts[rank])
        learners[rank].share = Share(
            threads.of(rank), columns, batch.lengths, device=torch.device("cpu")
        )
        return then(learners[rank], select_trajectories(batch, columns))

    with ThreadPoolExecutor(len(parts)) as pool:
        return learners, list(pool.map(do, range(len(parts))))


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


@pytest.mark.parametrize(
    ("parts", "lengths"),
    [
        ([[0, 1], [2, 3, 4]], [12] * 5),
        ([[0, 3], [1, 4], [2]], [12] * 5),
        ([[4], [0, 1, 2, 3]], [12, 3, 9, 12, 5]),
        ([[0, 1, 2, 3, 4]], [12] * 5),
    ],
)
def test_the_summed_gradient_is_that_of_one_process_with_the_whole_batch(
    parts: list[list[int]], lengths: list[int]
) -> None:
    alone = make(VECTORS)
    batch = cut(roll(alone.weights(), VECTORS, trajectories=5), lengths)

    def first_gradients(learner: Ppo, own: Batch) -> dict[str, torch.Tensor]:
        learner.begin([own], progress=0.25)
        return dict(learner.gradients(learner.samples(own), learner.minibatches(own, 0)[0]).tensors)

    expected = first_gradients(alone, batch)
    _, found = together(batch, parts, VECTORS, first_gradients)
    for one in found:
        assert one.keys() == expected.keys()
        for name, gradient in expected.items():
            np.testing.assert_allclose(one[name], gradient, atol=1e-6, rtol=1e-5, err_msg=name)
            assert torch.equal(one[name], found[0][name]), "all have the same bits"


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, PIXELS, COMBINED])
@pytest.mark.parametrize("settings", [{}, {"normalize_rewards": True}])
def test_they_train_as_one_does_round_after_round(spaces: Spaces, settings: dict[str, Any]) -> None:
    alone = make(spaces, **settings)
    batches: list[Batch] = []
    expected: list[Update] = []
    for seed in range(3):
        batches.append(
            cut(roll(alone.weights(), spaces, trajectories=4, seed=seed), [12, 7, 12, 2])
        )
        expected.append(alone.update(batches[-1], progress=seed / 10))

    def train(learner: Ppo, _: Batch) -> list[Update]:
        share, made = learner.share, []
        columns = {0: [0, 2], 1: [1, 3]}[share.group.rank]
        for seed, batch in enumerate(batches):
            learner.share = Share(
                share.group, np.array(columns), batch.lengths, device=learner.device
            )
            made.append(
                learner.update(select_trajectories(batch, np.array(columns)), progress=seed / 10)
            )
        return made

    learners, found = together(batches[0], [[0, 2], [1, 3]], spaces, train, **settings)
    assert_trained_alike(learners, found, alone, expected)


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

    alone, batches, expected = made(), list[Batch](), list[Update]()
    for seed in range(3):
        batches.append(
            cut(roll(alone.weights(), spaces, trajectories=4, seed=seed), [12, 7, 12, 2])
        )
        expected.append(alone.update(batches[-1], progress=seed / 10))
    assert kind == "impala" or minibatch_steps == 1000 or alone.steps_since_target < 33 * 3
    threads, learners = Threads(2), [made(), made()]

    def train(rank: int) -> list[Update]:
        columns, found = np.array([[0, 2], [1, 3]][rank]), []
        for seed, batch in enumerate(batches):
            learners[rank].share = Share(
                threads.of(rank), columns, batch.lengths, device=learners[rank].device
            )
            found.append(
                learners[rank].update(select_trajectories(batch, columns), progress=seed / 10)
            )
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    assert_trained_alike(learners, found, alone, expected)
