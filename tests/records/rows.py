"""Rows of rounds for tests."""

from __future__ import annotations

from typing import Any

from runtime.records.rows import COLUMNS, RoundRow

WHOLE = (
    "round_index",
    "policy_version",
    "actor_count_wanted",
    "actor_count",
    "actors_returned",
    "actors_failed",
    "actors_late",
    "env_steps",
    "env_steps_total",
    "episodes_finished",
    "episodes_spanning_versions",
    "updates",
    "staleness_max",
    "actors_billed",
    "evaluation_round",
    "gradients",
    "gradients_lost",
    "gradients_late",
    "aggregations",
    "staleness_bound",
    "replayed_steps",
    "episodes_dropped",
    "instances",
    "hessian_products",
    "product_samples",
    "evaluated_steps",
    "gradient_steps",
    "samples_trained",
    "cold_starts",
    "lost_steps",
)


def a_row(round_index: int, **values: Any) -> RoundRow:
    """Returns a row whose numbers are all 1, except its index and ``values``."""
    ones = {key: 1 if key in WHOLE else 1.0 for key in COLUMNS}
    return RoundRow(**ones | {"round_index": round_index} | values)
