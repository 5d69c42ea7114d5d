"""SAC on Pendulum and DQN on CartPole, by stable-baselines3 with a pool's actors, continued exactly after kill -9.

    python docs/examples/off_policy.py sac 10000    # or dqn; the same command continues it

A checkpoint holds everything that later steps depend on: model and optimizers, replay buffer, random states, and the
pool's open episodes. So a killed training ends with the same numbers as an undisturbed one. Loading it unpickles, as
stable-baselines3 does, so only load your own.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from nitro_rl import ActorPool, BudgetError
from nitro_rl.integrations import sb3

ACTORS, STEPS = 4, 25
ALGORITHMS: dict[str, Any] = {"sac": (SAC, "Pendulum-v1", 1e-3), "dqn": (DQN, "CartPole-v1", 2e-3)}


class Checkpoint(BaseCallback):
    """Saves a training at the first call after every so many steps, when all that was sampled is learned."""

    def __init__(self, pool: ActorPool, file: Path, every_steps: int) -> None:
        super().__init__()
        self.pool = pool
        self.file = file
        self.every_steps = every_steps
        self.saved_steps = 0

    def _on_training_start(self) -> None:
        self.saved_steps = self.num_timesteps

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.saved_steps + self.every_steps:
            self.save()

    def _on_training_end(self) -> None:
        self.save()

    def _on_step(self) -> bool:
        return True

    def save(self) -> None:
        """Writes a new file and then renames it, so that a kill leaves the old one or the new one."""
        model = io.BytesIO()
        self.model.save(model)
        contents = {
            "model": model.getvalue(),
            "replay_buffer": self.model.replay_buffer,
            "pool": self.pool.state(),
            "random": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
        }
        new = self.file.with_suffix(".new")
        with new.open("wb") as opened:
            pickle.dump(contents, opened)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(self.file)
        self.saved_steps = self.num_timesteps
        print(f"saved after {self.num_timesteps:,} steps, ${self.pool.spent_usd:.4f}", flush=True)


def new_model(name: str, pool: ActorPool) -> OffPolicyAlgorithm:
    algorithm, _, learning_rate = ALGORITHMS[name]
    model: OffPolicyAlgorithm = algorithm(
        "MlpPolicy",
        sb3.PoolEnv(pool, ACTORS),
        learning_rate=learning_rate,
        train_freq=STEPS,
        gradient_steps=-1,
        learning_starts=100,
        buffer_size=20_000,  # All of it is in each checkpoint.
        seed=1,
        device="cpu",
    )
    return model


def load(name: str, pool: ActorPool, file: Path) -> OffPolicyAlgorithm:
    """Loads a checkpoint. Making a model draws random numbers, so their states come last."""
    contents = pickle.loads(file.read_bytes())
    pool.load_state(contents["pool"])
    algorithm = ALGORITHMS[name][0]
    model: OffPolicyAlgorithm = algorithm.load(
        io.BytesIO(contents["model"]), env=sb3.PoolEnv(pool, ACTORS), device="cpu"
    )
    model.replay_buffer = contents["replay_buffer"]
    python_state, numpy_state, torch_state = contents["random"]
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)
    return model


def train(name: str, out: Path, *, steps: int, every_steps: int = 200) -> OffPolicyAlgorithm:
    """Trains up to this number of steps in all, or continues the training in ``out``."""
    experiment = {
        "environment": {"id": ALGORITHMS[name][1]},
        "actor": {"fragment_steps": STEPS},
        "scaler": {"kind": "fixed", "actors_fixed": ACTORS},
        "seed": 1,
    }
    file = out / "checkpoint.pickle"
    with ActorPool(experiment, budget_usd=0.05, out=out, is_quiet=True) as pool:
        model = load(name, pool, file) if file.exists() else new_model(name, pool)
        sb3.attach(model, pool)
        # One `learn` up to the same total, because schedules depend on it.
        model.learn(
            steps - model.num_timesteps,
            callback=Checkpoint(pool, file, every_steps),
            reset_num_timesteps=False,
        )
        returns = [episode["r"] for episode in model.ep_info_buffer or ()]
        print(f"mean return of the last episodes: {np.mean(returns):.1f}")
    return model


if __name__ == "__main__":
    torch.set_num_threads(1)  # Actors need the other cores, and sums depend on the number.
    chosen, steps_total = sys.argv[1:]
    try:
        train(chosen, Path("runs") / f"off_policy_{chosen}", steps=int(steps_total))
    except BudgetError as error:
        print(error)
