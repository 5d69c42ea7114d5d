"""A user's own trainer, by the rehearsal's clock: a pool of the real code that samples until it has made its calls.

``python -m tests.simulators.rehearsal.pool EXPERIMENT.yaml DIR CALLS`` prints a line when the pool is open and one for
each call, each with the dollars spent. After a call, it trains while there is a file DIR.training.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from tests.simulators.rehearsal.clock import Clock

ACTORS, STEPS = 3, 64

if __name__ == "__main__":
    now = Clock.of_this_process().now
    time.time = now
    from runtime.aws.learner import external

    external.steady_clock = lambda: now
    import nitro_rl

    path, out, calls = sys.argv[1:]
    layers = [(np.zeros((8, 11)), np.zeros(8)), (np.zeros((3, 8)), np.zeros(3))]
    policy = nitro_rl.numpy_policy(layers, log_std=np.zeros(3))
    try:
        with nitro_rl.ActorPool(
            path, out=out, overrides=["fleet.kind=lambda"], is_quiet=True
        ) as pool:
            print(f"open {pool.spent_usd:.6f}", flush=True)
            for number in range(int(calls)):
                trajectories = pool.sample(policy, actors=ACTORS, steps=STEPS)
                steps = sum(len(one.rewards) for one in trajectories)
                print(
                    f"call {number + 1}: {len(trajectories)} actors, {steps} steps {pool.spent_usd:.6f}",
                    flush=True,
                )
                while Path(f"{out}.training").exists():
                    time.sleep(0.1)
    except nitro_rl.RunError as error:
        print(f"error: {error}", flush=True)
        sys.exit(2)
    print(f"closed {pool.spent_usd:.6f}", flush=True)
