"""Candidate signals that a round is worth boosting, measured for a policy on a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from runtime.detector import noise
from runtime.detector.convexity import ConvexityDetector
from runtime.learner.actor_critic import ActorCritic
from runtime.ports.learning import DetectorSamples, Update

OBJECTIVES = ("log_prob", "surrogate", "total_loss")
LANCZOS_STEPS = 20


def curvature(
    learner: ActorCritic,
    samples: DetectorSamples,
    objective: str,
    *,
    subset_size: int | None = None,
    subset_seed: int = 0,
    start_seed: int | None = None,
    lanczos_steps: int = LANCZOS_STEPS,
) -> dict[str, float | None]:
    """Returns R and its eigenvalues, as the detector measures them.

    Args:
        subset_size: Number of samples to draw; None uses all.
        start_seed: Seed of Lanczos' start vector, if it differs from the subset's.
    """
    detector = ConvexityDetector(
        objective, subset_size or len(samples.advantages), lanczos_steps, seed=subset_seed
    )
    chosen = detector.select(samples)
    if start_seed is not None:
        detector = ConvexityDetector(
            objective, len(chosen.advantages), lanczos_steps, seed=start_seed
        )
    started_s = time.perf_counter()
    found = detector.measure(learner.curvature_problem(objective, chosen))
    return {
        "ratio": found.convexity_ratio,
        "eigenvalue_min": found.eigenvalue_min,
        "eigenvalue_max": found.eigenvalue_max,
        "seconds": time.perf_counter() - started_s,
    }


def gradient_noise(learner: ActorCritic, samples: DetectorSamples) -> dict[str, float]:
    """Returns |G|², tr Σ and their ratio, as the detector measures them, and |G| of all samples together.

    The unbiased |G|² may be negative. The squared norm of the samples' own mean gradient is |G|² + tr Σ/B.
    """
    found = noise.gradient_noise(learner.curvature_problem("surrogate", samples), seed=0)
    assert found.variance is not None and found.square is not None
    norm = (found.square + found.variance / len(samples.advantages)) ** 0.5
    return {
        "gradient_square": found.square,
        "gradient_trace": found.variance,
        "gradient_norm": norm,
        "gradient_noise_scale": found.variance / found.square,
    }


def of_update(update: Update) -> dict[str, float | None]:
    """Returns the update's own numbers, and the spread of its samples."""
    targets = update.samples.value_targets
    explained = update.metrics.explained_variance
    return {
        "kl": update.metrics.kl,
        "entropy": update.metrics.entropy,
        "policy_loss": update.metrics.policy_loss,
        "value_loss": update.metrics.value_loss,
        "explained_variance": explained,
        "target_std": float(targets.std()),
        "advantage_std": None
        if explained is None
        else float(targets.std() * max(0.0, 1.0 - explained) ** 0.5),
    }


def pooled(batches: Sequence[DetectorSamples]) -> DetectorSamples:
    """Joins batches into one set of samples."""
    return DetectorSamples(
        **{
            name: np.concatenate([getattr(one, name) for one in batches])
            for name in vars(batches[0])
        }
    )
