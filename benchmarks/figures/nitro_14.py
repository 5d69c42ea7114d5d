"""Nitro Fig. 14: what fifty rounds of PPO and IMPACT cost, with Nitro and on instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import efficiency, replays

PAPER = "§8.2: Nitro reduces the costs of training by up to 29 % for PPO and 42 % for IMPACT. RLlib and MSRL besides."
METHOD = (
    "the trainings of Figs. 10 and 11. Without Nitro a p3.2xlarge and a c5.4xlarge stand as long as the training with "
    "16 actors takes, starts not counted; with it, a p3.2xlarge for the learner, functions of 1,024 MiB by the "
    "millisecond, and 64 provisioned ones, for which AWS bills at least five minutes. All dollars are modelled, at "
    "list prices. RLlib and MSRL are not measured.")
ALGORITHMS = {"PPO": "ppo", "IMPACT": "impact"}
draw = efficiency.draw_bills


def measure(work: Path) -> dict[str, Any]:
    return {name: efficiency.measure(algorithm, work) for name, algorithm in ALGORITHMS.items()}


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    found = {algorithm: efficiency.savings(one) for algorithm, one in data.items()}
    signs = [replays.excludes(one["all"]) for of_one in found.values() for one in of_one.values()]
    status = "reproduced" if set(signs) == {1} else "partly" if 1 in signs else "not"
    return status, " ".join(
        f"{algorithm}: Nitro saves " + ", ".join(
            f"{_percent(one['all'])} on {efficiency.ENVIRONMENTS[name]} "
            f"({_percent(one['without_provisioned'])} without provisioned functions)"
            for name, one in of_one.items()) + "." for algorithm, of_one in found.items()) + (
        " Trainings that take half a minute cannot use provisioned functions, which are billed for five.")


def _percent(estimate: dict[str, Any]) -> str:
    scaled = {name: 100.0 * value if name.startswith("inter") else value for name, value in estimate.items()}
    return f"{replays.text(scaled, 0)} %"
