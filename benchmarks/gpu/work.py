"""Measures, by the clock, units of the learner's work on a device; prints seconds as JSON.

    python -m benchmarks.gpu.work experiments/hopper.yaml cuda

They are measured as those of the bill's table are, on one core of the CPU. An update, and a measurement of curvature,
end with numbers that the CPU has: a GPU is awaited.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.work_rates import measured
from runtime import learner
from runtime.config.loading import load_experiment
from runtime.training.preflight import preflight

REPEATS = 3

if __name__ == "__main__":
    _, path, device = sys.argv
    make = learner.make_learner

    def make_there(spec: Any, **_: Any) -> Any:
        return make(spec, device=device)

    learner.make_learner = make_there
    _, fitted = preflight(load_experiment(Path(path)).resolved())
    print(json.dumps(measured(fitted, REPEATS, time.perf_counter)))
