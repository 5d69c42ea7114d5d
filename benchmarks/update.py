"""Times one update of the learner, before and now: wall-clock and CPU seconds, by number of threads.

    python benchmarks/update.py [--base CHECKOUT] [--rounds 15]

The base is a checkout of the commit to compare with, and runs its own copy of this file. Each contender, a checkout
with a number of threads, is a separate process that makes one update on request. They take turns, and ratios are taken
round by round, so that drifts in the machine's speed cancel out. The base's better number of threads counts. Prints
JSON. Measure on an idle machine, and keep the output under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "PPO, minibatch 64": {"kind": "ppo", "minibatch_steps": 64, "epochs": 5},
    "PPO, minibatch 256": {"kind": "ppo", "minibatch_steps": 256, "epochs": 5},
    "IMPACT, minibatch 256": {"kind": "impact", "minibatch_steps": 256},
    "IMPALA, minibatch 256": {"kind": "impala", "minibatch_steps": 256},
    "PPO on pixels, 512 samples, minibatch 128": {
        "kind": "ppo",
        "minibatch_steps": 128,
        "epochs": 1,
        "pixels": True,
    },
}
"""By default 2,048 samples of 11 numbers, and two layers of 256 tanh units."""
OURS = Path(__file__).resolve().parents[1]


def serve(checkout: str, name: str, threads: int) -> None:
    """Makes an update of a checkout's learner for each line of input, and prints wall and CPU seconds."""
    sys.path.insert(0, checkout)
    import numpy as np

    from lambda_actor.spaces import Spaces
    from runtime.experiment.loading import experiment_from_tree
    from runtime.learner import LearnerSpec, make_learner
    from runtime.learner.interfaces import Batch

    case = dict(CASES[name])
    is_pixels = case.pop("pixels", False)
    spaces = (
        Spaces((4, 84, 84), frame_shape=(1, 84, 84), frame_stack=4, action_count=6)
        if is_pixels
        else Spaces((11,), action_size=3)
    )
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1.0},
        "algorithm": case,
    }
    experiment = (
        experiment_from_tree(tree, source=name)
        .resolved()
        .fitted(spaces, preprocessing="atari" if is_pixels else "none")
    )
    learner = make_learner(
        LearnerSpec(experiment.algorithm, spaces, "conv" if is_pixels else "mlp", 0, threads),
        device="cpu",
    )
    random, columns = np.random.default_rng(0), 8
    shape = ((512 if is_pixels else 2048) // columns, columns)

    def observed(*leading: int) -> np.ndarray:
        if is_pixels:
            return random.integers(0, 256, (*leading, *spaces.observation_shape), dtype=np.uint8)
        return random.standard_normal((*leading, *spaces.observation_shape)).astype(np.float32)

    is_last = np.zeros(shape, np.bool_)
    is_last[-1] = True
    actions = (
        random.integers(0, 6, shape)
        if is_pixels
        else random.standard_normal((*shape, 3)).astype(np.float32)
    )
    log_probs = (-4.0 + 0.1 * random.standard_normal(shape)).astype(np.float32)
    print("ready", flush=True)
    for _ in sys.stdin:
        batch = Batch(
            policy_versions=np.full(columns, learner.policy_version),
            lengths=np.full(columns, len(is_last)),
            observations=observed(*shape),
            actions=actions,
            log_probs=log_probs,
            rewards=random.standard_normal(shape),
            terminated=np.zeros(shape, np.bool_),
            bootstrap_mask=is_last,
            bootstrap_observations=observed(columns),
        )
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        learner.update(batch, progress=0.0)
        print(time.perf_counter() - wall_s, time.process_time() - cpu_s, flush=True)


def compare(base: str | None, name: str, rounds: int) -> dict[str, Any]:
    """Returns each contender's medians, and the ratios of base to ours on one core and on two."""
    contenders = [
        (checkout, threads)
        for checkout in ([base] if base else []) + [str(OURS)]
        for threads in (1, 2)
    ]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                f"{checkout}/benchmarks/update.py",
                "--serve",
                checkout,
                name,
                str(threads),
            ],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for checkout, threads in contenders
    ]
    try:
        for process in processes:
            process.stdout.readline()
        measured = [[ask(process) for process in processes] for _ in range(rounds + 2)][2:]
    finally:
        for process in processes:
            process.kill()
    wall, cpu = ([[one[kind] for one in row] for row in measured] for kind in (0, 1))
    found: dict[str, Any] = {
        "seconds": {
            f"{'base' if checkout == base else 'ours'}, {threads} thread{'s' * (threads > 1)}": {
                "wall": median(row[i] for row in wall),
                "cpu": median(row[i] for row in cpu),
            }
            for i, (checkout, threads) in enumerate(contenders)
        }
    }
    if base:
        found |= {
            "one core": median(row[0] / row[2] for row in wall),
            "one core, CPU": median(row[0] / row[2] for row in cpu),
            "two cores": median(min(row[:2]) / min(row[2:]) for row in wall),
        }
    return found


def ask(process: subprocess.Popen[str]) -> tuple[float, float]:
    process.stdin.write("\n")
    process.stdin.flush()
    wall_s, cpu_s = map(float, process.stdout.readline().split())
    return wall_s, cpu_s


def median(values: Any) -> float:
    return float(f"{statistics.median(values):.3g}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        raise SystemExit
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", help="checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        json.dumps(
            {
                "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
                "load_before": round(load, 2),
                "rounds": given.rounds,
                "updates": {name: compare(given.base, name, given.rounds) for name in CASES},
            },
            indent=2,
        )
    )
