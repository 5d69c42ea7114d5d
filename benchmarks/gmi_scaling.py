"""Measures how instances scale: a round's CPU seconds, predicted and measured, and its seconds modelled for more cores.

    python benchmarks/gmi_scaling.py [--repeats 3] > benchmarks/results/gmi_scaling.json

1. **Measured**: a round's CPU seconds in all processes, with one to eight instances on this machine's cores, as
   `benchmarks.plan_check` measures them, against the prediction of `python -m runtime plan`. With more instances than
   cores, the speed-up cannot be measured, but the work from which it is predicted can.
2. **Modelled**: a round's seconds with 1 to 192 instances, each on a core as fast as one here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.plan_check import FEW, MANY, ROOT, cpu_s  # noqa: E402
from benchmarks.provenance import origin  # noqa: E402
from runtime.config.loading import load_experiment  # noqa: E402
from runtime.planning.prediction import FAN_OUT_S, Sample, rounds_of  # noqa: E402
from runtime.planning.workload import Workload  # noqa: E402
from runtime.training.preflight import preflight  # noqa: E402

SETTINGS = [("hopper", 192, 21, 256), ("hopper", 192, 21, 4096)]
"""Experiment, actors, steps of a fragment, samples of a minibatch: rounds of about 4,096 steps."""
MEASURED, MODELLED = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64, 96, 192)


def changes(actors: int, steps: int, minibatch: int, instances: int) -> list[str]:
    return [
        "scaler.kind=fixed",
        f"scaler.actors_fixed={actors}",
        f"actor.fragment_steps={steps}",
        f"algorithm.ppo.minibatch_steps={minibatch}",
        "evaluation.every_rounds=0",
        "stop.target_return=null",
        "stop.max_steps=null",
        "algorithm.ppo.learning_rate_schedule=constant",
        "budget.usd=10",
        "learner.kind=gmi",
        "learner.gmi.reduction=mpr",
        "learner.threads=1",
        f"learner.gmi.instances={instances}",
    ]


def compare(name: str, actors: int, steps: int, minibatch: int, repeats: int) -> dict[str, Any]:
    """Predicts rounds of one setting, and measures rounds with few instances."""
    path, work, found = ROOT / "experiments" / f"{name}.yaml", None, []
    for instances in MODELLED:
        overrides = changes(actors, steps, minibatch, instances)
        environment, fitted = preflight(load_experiment(path, overrides).resolved())
        if work is None:
            work = Workload(fitted)
            for _ in range(3):
                work.measure()
        units = work.units()
        rounds = rounds_of(
            fitted,
            Sample(units, work.message_bytes, steps),
            environment,
            steps=actors * steps,
            instance_type="",
            parallel_speed=1.0,
        )
        # The loop's own work in a round, which instances do not share.
        loop_s = units["round_s"] + actors * (units["trajectory_s"] + FAN_OUT_S)
        row = {
            "instances": instances,
            "modelled_round_s": round(rounds.collect_s + rounds.learner_s, 4),
        }
        if instances in MEASURED:
            measured = [
                (cpu_s(path, overrides, MANY) - cpu_s(path, overrides, FEW)) / (MANY - FEW)
                for _ in range(repeats)
            ]
            predicted_s = instances * (rounds.collect_s + rounds.learner_s - loop_s) + loop_s
            row |= {
                "predicted_cpu_s": round(predicted_s, 4),
                "measured_cpu_s": round(statistics.median(measured), 4),
                "ratio": round(predicted_s / statistics.median(measured), 3),
            }
        found.append(row)
        print(name, minibatch, row, file=sys.stderr, flush=True)
    return {
        "experiment": name,
        "actors": actors,
        "fragment_steps": steps,
        "minibatch_steps": minibatch,
        "rounds": found,
    }


def main() -> None:
    """Prints JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(
        json.dumps(
            {
                **origin("python benchmarks/gmi_scaling.py"),
                "settings": [compare(*setting, arguments.repeats) for setting in SETTINGS],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
