"""stable-baselines3's PPO, as it is; prints its speed as JSON.

    /tmp/peers/bin/python benchmarks/peers/sb3_ppo.py --steps 61440 --threads 1

Observations are normalised by VecNormalize. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import torch
from ppo_arguments import CLIP, ENVIRONMENT, GAE_LAMBDA, GAMMA, HIDDEN, SEED, ppo_arguments
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

ENVIRONMENTS = 2


class Clock(BaseCallback):
    """Notes when each round began to be sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.began_s.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def main(args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    envs = VecMonitor(DummyVecEnv([lambda: gymnasium.make(ENVIRONMENT)] * ENVIRONMENTS))
    model = PPO(
        "MlpPolicy", VecNormalize(envs, norm_reward=False), n_steps=args.batch // ENVIRONMENTS,
        batch_size=args.minibatch, n_epochs=args.epochs, learning_rate=args.learning_rate, gamma=GAMMA,
        gae_lambda=GAE_LAMBDA, clip_range=CLIP, seed=SEED, device="cpu",
        policy_kwargs={"net_arch": {"pi": [HIDDEN] * 2, "vf": [HIDDEN] * 2}, "activation_fn": torch.nn.Tanh})
    rounds, clock = -(-args.steps // args.batch), Clock()
    model.learn((rounds + 1) * args.batch, callback=clock)
    seconds = time.perf_counter() - clock.began_s[1]
    envs.close()
    return {"steps": rounds * args.batch, "seconds": seconds,
            "episode_return_mean": float(np.mean([one["r"] for one in model.ep_info_buffer][-20:] or [0.0]))}


if __name__ == "__main__":
    print(json.dumps(main(ppo_arguments(__doc__).parse_args())))
