"""Compares playing several environments in lockstep in one process with playing them one after the other.

    python benchmarks/lock_step.py

A full-size policy plays the same sixteen fragments, one, four or sixteen at once. They take turns in one process, on
one thread, and ratios are taken turn by turn, so that drifts in the machine's speed cancel out. CPU seconds count.
Prints JSON; keep it under benchmarks/results/.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
)
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.provenance import origin  # noqa: E402
from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.rollout import Request, roll_out_together  # noqa: E402
from lambda_actor.trial import random_policy  # noqa: E402

STEPS = {"CartPole-v1": 512, "Hopper-v5": 512, "Humanoid-v5": 256, "ALE/SpaceInvaders-v5": 32}
VECTORS, FRAGMENTS, TURNS = (1, 4, 16), 16, 9


def measure(environment_id: str, steps: int) -> dict[str, dict[str, float]]:
    environments = [make_environment(environment_id) for _ in range(FRAGMENTS)]
    policy = random_policy(environments[0])

    def step_s(vector: int, turn: int) -> float:
        started_s = time.process_time()
        for first in range(0, FRAGMENTS, vector):
            requests = [Request(0, turn, slot) for slot in range(first, first + vector)]
            roll_out_together(
                environments[first : first + vector], policy, requests, fragment_steps=steps
            )
        return (time.process_time() - started_s) / (FRAGMENTS * steps)

    turns = [
        {vector: step_s(vector, turn) for vector in (VECTORS if turn % 2 else VECTORS[::-1])}
        for turn in range(TURNS)
    ]
    return {
        str(vector): {
            "steps_per_cpu_s": round(1.0 / statistics.median(turn[vector] for turn in turns)),
            "ratio_to_1": round(statistics.median(turn[1] / turn[vector] for turn in turns), 3),
        }
        for vector in VECTORS
    }


if __name__ == "__main__":
    print(
        json.dumps(
            {
                **origin("python benchmarks/lock_step.py"),
                "fragments": FRAGMENTS,
                "turns": TURNS,
                "environments": {name: measure(name, steps) for name, steps in STEPS.items()},
            },
            indent=1,
        )
    )
