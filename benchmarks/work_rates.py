"""Writes papers/units.json: CPU seconds of each unit of work, for the workloads of all shipped experiments.

    python benchmarks/work_rates.py [--repeats 5] [EXPERIMENT.yaml ...]

papers/pricing.py prices rows by it. Values are median CPU seconds of one thread.
Other load makes them longer, so run it on an idle machine. Given file names, it measures only those, and keeps the
other entries, which come from the machine that measured all. To match that machine, `REFERENCE` is also measured, and
each unit is divided by the ratio of its value here to its value in the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import commit_of, processor  # noqa: E402
from runtime.config.loading import load_experiment  # noqa: E402
from runtime.config.resolved import FittedExperiment  # noqa: E402
from runtime.planning.workload import Workload  # noqa: E402
from runtime.training.preflight import preflight  # noqa: E402

UNITS = (
    "init_s",
    "invocation_s",
    "step_s",
    "evaluated_step_s",
    "gradient_step_s",
    "sample_s",
    "product_sample_s",
)
TABLE_PATH = ROOT / "papers" / "units.json"
REFERENCE = ROOT / "experiments" / "hopper-fixed.yaml"


def workload(experiment: FittedExperiment) -> str:
    """Returns the workload's name, made of all settings that determine the time of a unit of work."""
    environment = experiment.environment
    options = f" {json.dumps(environment.options)}" if environment.options else ""
    return (
        f"{environment.id}{options} {environment.preprocessing} {experiment.network.architecture} "
        f"{experiment.algorithm.kind}"
    )


def shipped() -> list[Path]:
    """Returns all experiment files, except for bases that others extend."""
    return [
        path
        for path in sorted((ROOT / "experiments").glob("**/*.yaml"))
        if path.parent.name != "bases"
    ]


def sampled(
    fitted: FittedExperiment, repeats: int, clock: Callable[[], float] = time.process_time
) -> Workload:
    """Samples an experiment's work, as `plan` does. The first time warms up."""
    work = Workload(fitted, clock)
    work.measure()
    work.seconds.clear()
    for _ in range(repeats):
        work.measure()
    return work


def measured(
    fitted: FittedExperiment, repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Returns the seconds of each unit of an experiment's work."""
    return {
        unit: seconds
        for unit, seconds in sampled(fitted, repeats, clock).units().items()
        if unit in UNITS
    }


def main() -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    found = json.loads(TABLE_PATH.read_bytes()) if arguments.files else {"workloads": {}}
    workloads, slowness = found["workloads"], dict.fromkeys(UNITS, 1.0)
    if arguments.files:
        _, fitted = preflight(load_experiment(REFERENCE).resolved())
        units = measured(fitted, arguments.repeats)
        slowness = {unit: units[unit] / workloads[workload(fitted)][unit] for unit in UNITS}
        print("this machine's seconds relative to the table:", slowness, flush=True)
    seen = set()
    for path in arguments.files or shipped():
        _, fitted = preflight(load_experiment(path).resolved())
        if (name := workload(fitted)) in seen:
            continue
        seen.add(name)
        units = measured(fitted, arguments.repeats)
        workloads[name] = {unit: float(f"{units[unit] / slowness[unit]:.4g}") for unit in units}
        print(name, workloads[name], flush=True)
    TABLE_PATH.write_text(
        json.dumps(
            {
                "as_of": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "commit": commit_of(),
                "machine": found.get("machine", f"one core of {processor()}"),
                "workloads": dict(sorted(workloads.items())),
            },
            indent=2,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
