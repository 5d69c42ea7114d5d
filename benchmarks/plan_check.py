"""Compares the predictions of `python -m runtime plan` with whole local runs of ten settings.

    python benchmarks/plan_check.py [--repeats 3] > benchmarks/results/plan_check.json

It compares a round's CPU seconds in all processes. A run with few rounds is subtracted from one with many, which
removes imports. Right before, the workload is sampled as `plan` does. CPU seconds count, because wall-clock time cannot
be predicted on a shared machine. Repeat it on an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import commit_of  # noqa: E402
from runtime.config.loading import load_experiment  # noqa: E402
from runtime.planning.prediction import Sample, rounds_of  # noqa: E402
from runtime.planning.workload import Workload  # noqa: E402
from runtime.training.preflight import preflight  # noqa: E402

FEW, MANY = 2, 14
SETTINGS = [
    ("hopper", 8, 256, 64),
    ("hopper", 2, 1024, 64),
    ("hopper", 32, 64, 256),
    ("hopper", 8, 512, 256),
    ("walker2d", 8, 256, 64),
    ("walker2d", 16, 256, 256),
    ("halfcheetah", 4, 512, 64),
    ("halfcheetah", 16, 256, 1024),
    ("humanoid", 8, 256, 64),
    ("ant", 8, 256, 256),
]
"""Experiment, actors, steps of a fragment, samples of a minibatch."""


def changes(actors: int, steps: int, minibatch: int) -> list[str]:
    return [
        "scaler.kind=fixed",
        f"scaler.actors_fixed={actors}",
        f"actor.fragment_steps={steps}",
        f"algorithm.minibatch_steps={minibatch}",
        "evaluation.every_rounds=0",
        "stop.target_return=null",
        "stop.max_steps=null",
        "algorithm.learning_rate_schedule=constant",
        "fleet.processes=1",
        "budget.usd=10",
    ]


def cpu_s(path: Path, overrides: list[str], rounds: int) -> float:
    """Returns the CPU seconds of a whole run and all its processes."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [
            word for one in [*overrides, f"stop.max_rounds={rounds}"] for word in ("--set", one)
        ]
        subprocess.run(
            [sys.executable, "-m", "runtime", "train", str(path), "--out", f"{folder}/run", *words],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(name: str, actors: int, steps: int, minibatch: int, repeats: int) -> dict[str, Any]:
    """Predicts and measures a round of one setting."""
    path, overrides = ROOT / "experiments" / f"{name}.yaml", changes(actors, steps, minibatch)
    environment, fitted = preflight(load_experiment(path, overrides).resolved())
    work, measured = Workload(fitted), []
    work.measure()
    work.seconds.clear()
    for _ in range(repeats):
        for _ in range(3):
            work.measure()
        measured.append((cpu_s(path, overrides, MANY) - cpu_s(path, overrides, FEW)) / (MANY - FEW))
    sample = Sample(work.units(), work.message_bytes, steps)
    rounds = rounds_of(fitted, sample, environment, steps=actors * steps, parallel_speed=1.0)
    predicted_s, measured_s = rounds.collect_s + rounds.learner_s, statistics.median(measured)
    return {
        "experiment": name,
        "actors": actors,
        "fragment_steps": steps,
        "minibatch_steps": minibatch,
        "predicted_cpu_s": round(predicted_s, 4),
        "measured_cpu_s": round(measured_s, 4),
        "ratio": round(predicted_s / measured_s, 3),
    }


def main() -> None:
    """Prints JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found = []
    for setting in SETTINGS:
        found.append(compare(*setting, arguments.repeats))
        print(found[-1], file=sys.stderr, flush=True)
    within = sum(abs(one["ratio"] - 1) <= 0.15 for one in found)
    print(
        json.dumps(
            {
                "commit": commit_of(),
                "unit": "CPU seconds of one round, all processes",
                "within_15_percent": within,
                "settings": found,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
