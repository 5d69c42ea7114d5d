"""Untrained schedulers, and rows as input for scalers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lambda_actor import wire
from runtime.records.rows import COLUMNS, RoundRow
from runtime.scaler.saved_scheduler import FEATURES, Pricing, SavedScheduler

PRICING = Pricing(
    invocation_s=0.5,
    step_s=0.01,
    cold_start_s=1.0,
    gradient_step_s=0.25,
    sample_s=0.001,
    evaluated_step_s=0.02,
    invocation_usd=0.001,
    actor_usd_per_s=0.002,
    learner_usd_per_s=0.01,
)
"""Seconds and prices whose sums are easy to check by hand."""


def make_scheduler(
    actors_min: int = 2, actors_max: int = 6, *, seed: int = 0, **fields: Any
) -> SavedScheduler:
    """Returns a scheduler with random weights; ``fields`` replace its arrays."""
    stream = np.random.default_rng(seed)
    sizes = (len(FEATURES), 64, 64, actors_max - actors_min + 1)
    arrays = {
        "policy_version": np.asarray(1),
        "network": wire.text_field("mlp"),
        "distribution": wire.text_field("categorical"),
        "log_std": np.empty(0, np.float32),
        "observation_mean": np.full(8, 0.5, np.float32),
        "observation_std": np.full(8, 2.0, np.float32),
        "observation_clip": np.asarray(10.0, np.float32),
    }
    for layer in range(3):
        arrays[f"layer.{layer}.weight"] = stream.normal(
            size=(sizes[layer + 1], sizes[layer])
        ).astype(np.float32)
        arrays[f"layer.{layer}.bias"] = stream.normal(size=sizes[layer + 1]).astype(np.float32)
    return SavedScheduler(arrays | fields, actors_min, PRICING)


def row(**values: Any) -> RoundRow:
    """Returns a finished round; unset values are 0."""
    return RoundRow(**dict.fromkeys(COLUMNS, 0) | values)
