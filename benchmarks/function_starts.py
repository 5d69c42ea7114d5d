"""Measures each function's work while Lambda starts its sandbox: CPU seconds and bytes read. Prints JSON.

    python benchmarks/function_starts.py > benchmarks/results/DAY-COMMIT-function-starts.json

Lambda gives a sandbox ten seconds to start, and bills them. Each import runs in its own interpreter. Bytes read include
the pages of libraries that it touches: a sandbox on a cold host must fetch these from the image. For comparison, the
imports of the first invocation are measured as well.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys

from provenance import ROOT, origin

REPEATS = 5
STARTS = {
    "actor": "lambda_actor.handler",
    "learner function": "runtime.learner.remote.handler",
    "coordinator": "runtime.backends.aws.coordinator",
}
"""The module of each function's handler."""
FIRST = {
    "actor": ["gymnasium.envs.mujoco.hopper_v5", "mujoco"],
    "learner function": ["runtime.learner.actor_critic", "runtime.learner.remote.gradients"],
    "coordinator": ["runtime.learner.actor_critic", "torch.utils.tensorboard"],
}
"""Additional imports of the first invocation."""
_MEASURED = """
import importlib, json, sys, time
for module in sys.argv[1:]:
    importlib.import_module(module)
print(json.dumps([time.process_time(), open("/proc/self/io").read(), open("/proc/self/smaps").read()]))
"""


def start(modules: list[str]) -> tuple[float, int]:
    """Returns the CPU seconds and bytes read of an interpreter that imports these modules."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    seconds, io, maps = json.loads(done.stdout)
    touched = 0
    for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", maps):
        if re.match(r"\S+ \S+ \S+ \S+ \d+ +/", mapping):
            touched += 1024 * int(re.search(r"(?m)^Rss: +(\d+) kB", mapping)[1])
    return seconds, int(re.search(r"rchar: (\d+)", io)[1]) + touched


def main() -> None:
    results = {}
    for role, module in STARTS.items():
        for what, modules in (
            ("start", [module]),
            ("with the first invocation", [module, *FIRST[role]]),
        ):
            found = [start(modules) for _ in range(REPEATS)]
            results[f"{role}: {what}"] = {
                "cpu_s": round(min(seconds for seconds, _ in found), 3),
                "read_mib": round(statistics.median(read for _, read in found) / 2**20, 1),
            }
    print(
        json.dumps(
            {
                **origin("python benchmarks/function_starts.py"),
                "python": platform.python_version(),
                "repeats": REPEATS,
                "starts": results,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
