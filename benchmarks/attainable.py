"""Measures the highest possible speed of a round of sampling and PPO here, without overlap. Prints JSON.

    python benchmarks/attainable.py --steps 61440

The bound is the sum of the work that no implementation can avoid: the physics of a round's steps in C on all cores
(mujoco.rollout, with skipped frames), the matrix products of its update in their real shapes, one forward and two
backward, for policy and critic, and their tanh. Products and tanh run on one torch thread, on two, and on a Python
thread for each network. The fastest counts. Everything else (policy inference of actors, observations, rewards, resets,
losses, optimizer, transport) counts as zero.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import mujoco
import numpy as np
import torch
from mujoco import rollout
from peers.ppo_arguments import ENVIRONMENT, HIDDEN, ppo_arguments

BATCHES = 64
"""Number of fragments into which a round's physics is divided."""


def physics(environment_id: str, steps: int) -> Callable[[], None]:
    """Returns a function that simulates a round's steps on all cores, with random actions."""
    environment = gymnasium.make(environment_id).unwrapped
    environment.reset(seed=0)
    model, frame_skip = environment.model, environment.frame_skip
    data = [mujoco.MjData(model) for _ in range(os.cpu_count() or 1)]
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    state = np.empty(size)
    mujoco.mj_getState(model, environment.data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.tile(state, (BATCHES, 1))
    actions = np.random.default_rng(0).uniform(
        environment.action_space.low,
        environment.action_space.high,
        (BATCHES, steps // BATCHES, model.nu),
    )
    controls = np.repeat(actions, frame_skip, axis=1)
    runner = rollout.Rollout(nthread=len(data))

    def run() -> None:
        runner.rollout(model, data, states, controls)

    return run


def network(minibatch: int, inputs: int, outputs: int) -> Callable[[], None]:
    """Returns a function that computes one network's products and tanh of a gradient step, into existing buffers."""
    sizes = [inputs, HIDDEN, HIDDEN, outputs]
    layers = list(zip(sizes, sizes[1:], strict=False))
    weights = [torch.randn(wide, narrow) / narrow**0.5 for narrow, wide in layers]
    activations = [torch.randn(minibatch, size) for size in sizes]
    errors = [torch.randn(minibatch, size) for size in sizes]
    gradients = [torch.empty_like(weight) for weight in weights]

    def run() -> None:
        for layer, weight in enumerate(weights):
            torch.mm(activations[layer], weight.T, out=activations[layer + 1])
            if layer < len(weights) - 1:
                torch.tanh_(activations[layer + 1])
        for layer in reversed(range(len(weights))):
            torch.mm(errors[layer + 1].T, activations[layer], out=gradients[layer])
            if layer:
                torch.mm(errors[layer + 1], weights[layer], out=errors[layer])

    return run


def learning(
    minibatch: int, gradient_steps: int, observations: int, actions: int
) -> dict[str, Callable[[], None]]:
    """Returns the ways to run a round's gradient steps on two cores."""
    networks = [network(minibatch, observations, actions), network(minibatch, observations, 1)]
    pool = ThreadPoolExecutor(2)

    def repeated(step: Callable[[], None]) -> None:
        for _ in range(gradient_steps):
            step()

    def together(threads: int) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            for step in networks:
                repeated(step)

        return run

    def apart() -> None:
        torch.set_num_threads(1)
        list(pool.map(repeated, networks))

    return {"torch_threads_1": together(1), "torch_threads_2": together(2), "a_thread_each": apart}


@torch.no_grad()
def main(args: argparse.Namespace) -> dict[str, object]:
    environment = gymnasium.make(ENVIRONMENT)
    observations, actions = (
        environment.observation_space.shape[0],
        environment.action_space.shape[0],
    )
    gradient_steps = args.epochs * -(-args.batch // args.minibatch)
    contenders = {
        "physics": physics(ENVIRONMENT, args.batch),
        **learning(args.minibatch, gradient_steps, observations, actions),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(max(3, args.steps // args.batch) + 1):
        for name, run in contenders.items():
            started_s = time.perf_counter()
            run()
            if repeat > 0:  # the first warms up
                seconds[name].append(time.perf_counter() - started_s)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    physics_s = medians.pop("physics")
    way = min(medians, key=medians.__getitem__)
    return {
        "steps": args.batch,
        "seconds": physics_s + medians[way],
        "physics_s": physics_s,
        "way": way,
        "learning_s": medians,
    }


if __name__ == "__main__":
    print(json.dumps(main(ppo_arguments(__doc__).parse_args())))
