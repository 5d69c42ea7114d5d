"""Nitro Fig. 14: the cost of fifty rounds of PPO and IMPACT, with Nitro and on instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers.estimates import excludes, status
from papers.nitro.figures import efficiency

ALGORITHMS = {"PPO": "ppo", "IMPACT": "impact"}
draw = efficiency.draw_bills


def measure(work: Path) -> dict[str, Any]:
    return {name: efficiency.measure(algorithm, work) for name, algorithm in ALGORITHMS.items()}


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    savings = {algorithm: efficiency.savings(one) for algorithm, one in data.items()}
    return {
        "savings": savings,
        "status": status(
            excludes(one["all"]) == 1 for of_one in savings.values() for one in of_one.values()
        ),
    }
