"""What could say that a round is worth boosting, measured at a policy on a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from runtime.detector.convexity import ConvexityDetector
from runtime.learner.actor_critic import ActorCritic
from runtime.ports.learning import DetectorSamples, Update

OBJECTIVES = ("log_prob", "surrogate", "total_loss")
LANCZOS_STEPS = 20
_SMALL_STEPS = 64
"""Samples of the small gradients of the gradient noise scale."""


def curvature(
    learner: ActorCritic, samples: DetectorSamples, objective: str, *, subset_size: int | None = None,
    subset_seed: int = 0, start_seed: int | None = None, lanczos_steps: int = LANCZOS_STEPS,
) -> dict[str, float | None]:
    """R and its eigenvalues, as the detector measures them.

    Args:
        subset_size: Samples that are drawn; all without.
        start_seed: Of Lanczos' start vector, where it is not to be the subset's.
    """
    detector = ConvexityDetector(objective, subset_size or len(samples.advantages), lanczos_steps, seed=subset_seed)
    chosen = detector.select(samples)
    if start_seed is not None:
        detector = ConvexityDetector(objective, len(chosen.advantages), lanczos_steps, seed=start_seed)
    started_s = time.perf_counter()
    found = detector.measure(learner.curvature_problem(objective, chosen))
    return {"ratio": found.convexity_ratio, "eigenvalue_min": found.eigenvalue_min,
            "eigenvalue_max": found.eigenvalue_max, "seconds": time.perf_counter() - started_s}


def gradient_noise(learner: ActorCritic, samples: DetectorSamples, objective: str = "surrogate") -> dict[str, float]:
    """McCandlish et al. 2018, appendix A.1: |G|², tr Σ, and their ratio, the simple noise scale in samples.

    Unbiased estimates from the gradients of small parts and of all; |G|² may come out negative.
    """
    count = len(samples.advantages) // _SMALL_STEPS * _SMALL_STEPS
    order = np.random.default_rng(0).permutation(len(samples.advantages))[:count]
    small = [_gradient(learner, _select(samples, part), objective)
             for part in np.split(order, count // _SMALL_STEPS)]
    big = torch.stack(small).mean(0)
    small_square = float(torch.stack([one.square().sum() for one in small]).mean())
    big_square = float(big.square().sum())
    square = (count * big_square - _SMALL_STEPS * small_square) / (count - _SMALL_STEPS)
    trace = (small_square - big_square) / (1.0 / _SMALL_STEPS - 1.0 / count)
    return {"gradient_square": square, "gradient_trace": trace, "gradient_norm": big_square**0.5,
            "gradient_noise_scale": trace / square}


def of_update(update: Update) -> dict[str, float | None]:
    """What the update reports, and the spread of what it was made from."""
    targets = update.samples.value_targets
    explained = update.metrics.explained_variance
    return {
        "kl": update.metrics.kl, "entropy": update.metrics.entropy, "policy_loss": update.metrics.policy_loss,
        "value_loss": update.metrics.value_loss, "explained_variance": explained,
        "target_std": float(targets.std()),
        "advantage_std": None if explained is None else float(targets.std() * max(0.0, 1.0 - explained)**0.5),
    }


def pooled(batches: Sequence[DetectorSamples]) -> DetectorSamples:
    """One set of samples."""
    return DetectorSamples(**{name: np.concatenate([getattr(one, name) for one in batches])
                              for name in vars(batches[0])})


def _select(samples: DetectorSamples, chosen: np.ndarray) -> DetectorSamples:
    return DetectorSamples(**{name: array[chosen] for name, array in vars(samples).items()})


def _gradient(learner: ActorCritic, samples: DetectorSamples, objective: str) -> torch.Tensor:
    problem = learner.curvature_problem(objective, samples)
    gradients = torch.autograd.grad(problem.criterion(problem.module(problem.inputs), problem.targets),
                                    list(problem.module.parameters()))
    return torch.cat([one.reshape(-1) for one in gradients])
