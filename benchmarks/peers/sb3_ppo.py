"""stable-baselines3's PPO, as it is; prints its speed as JSON.

    /tmp/peers/bin/python benchmarks/peers/sb3_ppo.py --steps 61440 --envs 2 --threads 1

Observations are normalised by VecNormalize. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import torch
from ppo_arguments import ppo_arguments
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize


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
    kind = SubprocVecEnv if args.subprocesses else DummyVecEnv
    envs = VecMonitor(kind([lambda: gymnasium.make(args.environment)] * args.envs))
    model = PPO(
        "MlpPolicy", VecNormalize(envs, norm_reward=False), n_steps=args.batch // args.envs, batch_size=args.minibatch,
        n_epochs=args.epochs, learning_rate=args.learning_rate, gamma=args.gamma, gae_lambda=args.gae_lambda,
        clip_range=args.clip, seed=args.seed, device="cpu",
        policy_kwargs={"net_arch": {"pi": [args.hidden] * 2, "vf": [args.hidden] * 2}, "activation_fn": torch.nn.Tanh})
    rounds, clock = -(-args.steps // args.batch), Clock()
    model.learn((rounds + 1) * args.batch, callback=clock)
    seconds = time.perf_counter() - clock.began_s[1]
    envs.close()
    return {"steps": rounds * args.batch, "seconds": seconds,
            "episode_return_mean": float(np.mean([one["r"] for one in model.ep_info_buffer][-20:] or [0.0]))}


if __name__ == "__main__":
    parser = ppo_arguments(__doc__)
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--subprocesses", action="store_true", help="each environment in a process of its own")
    parser.add_argument("--hidden", type=int, default=256)
    print(json.dumps(main(parser.parse_args())))
