"""Compares the asynchronous layout with one learner whose actors do not wait either, in trained steps per second.

    python -m benchmarks.gmi_asynchronous [--repeats 5]

Runs whole trainings of Hopper with IMPALA and IMPACT, which take turns. The first ten rounds do not count. Keep the
machine idle. Writes benchmarks/results/gmi_asynchronous.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.provenance import ROOT, origin
from benchmarks.seeds import NATIVE, run

ROUNDS, LEFT_OUT = 60, 10
COMMON = (
    "scaler.kind=fixed",
    "scaler.actors_fixed=8",
    f"stop.max_rounds={ROUNDS}",
    "stop.target_return=null",
    "stop.max_steps=null",
    "evaluation.every_rounds=0",
    "budget.usd=100",
    "algorithm.rounds=asynchronous",
)
LAYOUT = ("learner.kind=gmi", "learner.layout=asynchronous")
CONTENDERS = {
    "one learner": (),
    "1 serving, 1 trainer": (*LAYOUT, "learner.instances=2"),
    "2 serving, 1 trainer": (*LAYOUT, "learner.instances=3"),
}


def steps_per_s(changes: Sequence[str]) -> float:
    """Trains once. Returns the trained steps per second."""
    options = [word for change in changes for word in ("--set", change)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        run(NATIVE, "train", "experiments/hopper-fixed.yaml", "--out", str(out), *options)
        lines = (out / "rounds.jsonl").read_text().splitlines()[LEFT_OUT:]
    rows = [json.loads(line) for line in lines]
    return float(sum(row["env_steps"] for row in rows) / sum(row["round_s"] for row in rows))


def main(repeats: int, out: Path) -> None:
    results = {
        **origin(f"python -m benchmarks.gmi_asynchronous --repeats {repeats}"),
        "load_before": os.getloadavg(),
        "steps_per_s": {},
        "times_one_learner": {},
    }
    for kind in ("impala", "impact"):
        found = defaultdict[str, list[float]](list)
        for _ in range(repeats):
            for name, changes in CONTENDERS.items():
                found[name].append(steps_per_s((*COMMON, f"algorithm.kind={kind}", *changes)))
        base, *others = CONTENDERS
        results["steps_per_s"][kind] = found
        results["times_one_learner"][kind] = {
            name: statistics.median(
                mine / its for mine, its in zip(found[name], found[base], strict=True)
            )
            for name in others
        }
        print(kind, results["times_one_learner"][kind], flush=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "gmi_asynchronous.json"
    )
    arguments = parser.parse_args()
    main(arguments.repeats, arguments.out)
