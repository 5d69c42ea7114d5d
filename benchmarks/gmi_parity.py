"""Compares the returns of runs with instances and with one learner, with the same seeds and settings.

    python benchmarks/gmi_parity.py > benchmarks/results/gmi_parity.json

Trains seeds of Hopper-v5 and HalfCheetah-v5 for 100,000 steps each with their example files' settings. The last
evaluation of ten episodes counts. The two ways differ only in the rounding of sums. That soon makes individual
trainings diverge, so the returns over all seeds are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import origin  # noqa: E402

SEEDS = {"hopper": range(10), "halfcheetah": range(30)}
"""HalfCheetah's first ten seeds differed by chance. The other twenty were added to check that."""
WAYS = {
    "one learner": [],
    "two instances": ["learner.kind=gmi", "learner.gmi.instances=2", "learner.gmi.reduction=mpr"],
}


def final_return(name: str, way: list[str], seed: int) -> float:
    """Trains, and returns the last evaluation's return."""
    overrides = [
        "stop.max_steps=100_000",
        "stop.target_return=null",
        "evaluation.every_rounds=100",
        f"seed={seed}",
        *way,
    ]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "runtime",
                "train",
                f"experiments/{name}.yaml",
                "--out",
                f"{folder}/run",
                *(word for one in overrides for word in ("--set", one)),
            ],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        summary: dict[str, Any] = json.loads(Path(folder, "run", "summary.json").read_text())
    print(name, seed, way[:1], summary["evaluation_return_mean"], file=sys.stderr, flush=True)
    return float(summary["evaluation_return_mean"])


def main() -> None:
    """Prints JSON."""
    found: dict[str, Any] = {}
    for name, seeds in SEEDS.items():
        returns = {
            way: [final_return(name, changes, seed) for seed in seeds]
            for way, changes in WAYS.items()
        }
        found[name] = {
            way: {
                "mean": round(statistics.mean(each), 1),
                "deviation": round(statistics.stdev(each), 1),
                "returns": [round(one, 1) for one in each],
            }
            for way, each in returns.items()
        }
    print(
        json.dumps(
            {**origin("python benchmarks/gmi_parity.py"), "steps": 100_000, "environments": found},
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
