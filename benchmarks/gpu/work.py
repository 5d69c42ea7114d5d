"""Measures the wall-clock seconds of units of the learner's work on a device. Prints JSON.

    python -m benchmarks.gpu.work experiments/hopper-fixed.yaml cuda

The measurement is the same as for papers/units.json, on one CPU core. Updates and curvature measurements end with
numbers on the CPU, so they wait for the GPU.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.work_rates import measured
from runtime import learner
from runtime.experiment.loading import load_experiment
from runtime.training.preflight import fit
from runtime.training.trial import try_experiment

REPEATS = 3

if __name__ == "__main__":
    _, path, device = sys.argv
    make = learner.make_learner

    def make_there(spec: Any, **_: Any) -> Any:
        return make(spec, device=device)

    learner.make_learner = make_there
    experiment = load_experiment(Path(path)).resolved()
    fitted = fit(experiment, try_experiment(experiment))
    print(json.dumps(measured(fitted, REPEATS, time.perf_counter)))
