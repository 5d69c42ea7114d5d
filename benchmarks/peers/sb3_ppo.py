"""Runs stable-baselines3's unmodified PPO. Prints its speed as JSON.

    /tmp/peers/bin/python benchmarks/peers/sb3_ppo.py --steps 61440 --threads 1

VecNormalize normalizes vectors. Games run in separate processes, with a network like ours. The first round warms up and
does not count.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import gymnasium
import numpy as np
import ppo_arguments as given
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from torch import nn

ENVIRONMENTS = 2


class Clock(BaseCallback):
    """Records when the sampling of each round began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.times_s.append(time.perf_counter())

    _on_rollout_end = _on_rollout_start

    def _on_step(self) -> bool:
        return True


class Convolutions(BaseFeaturesExtractor):
    """Our network for pixels up to its outputs: 16 filters of 8×8, stride 4; 32 of 4×4, stride 2; 256 dense units."""

    def __init__(self, observation_space: gymnasium.Space) -> None:
        super().__init__(observation_space, 256)
        self.layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[0], 16, 8, 4, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 256, 11),
            nn.ReLU(),
            nn.Flatten(),
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


def played(environment: str) -> tuple[Any, dict[str, Any]]:
    """Returns environments, and the arguments of their policy."""
    if given.is_game(environment):
        games = make_atari_env(
            f"ale_py:{environment}", given.PLAYED_AT_ONCE, given.SEED, vec_env_cls=SubprocVecEnv
        )
        return VecFrameStack(games, given.FRAMES), {
            "policy": "CnnPolicy",
            "policy_kwargs": {
                "features_extractor_class": Convolutions,
                "share_features_extractor": False,
                "net_arch": [],
            },
        }
    envs = VecMonitor(DummyVecEnv([lambda: gymnasium.make(environment)] * ENVIRONMENTS))
    return VecNormalize(envs, norm_reward=False), {
        "policy": "MlpPolicy",
        "policy_kwargs": {
            "net_arch": {"pi": [given.HIDDEN] * 2, "vf": [given.HIDDEN] * 2},
            "activation_fn": torch.nn.Tanh,
        },
    }


def main(args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    envs, policy = played(args.environment)
    model = PPO(
        env=envs,
        **policy,
        n_steps=args.batch // envs.num_envs,
        batch_size=args.minibatch,
        n_epochs=args.epochs,
        learning_rate=args.learning_rate,
        gamma=given.GAMMA,
        gae_lambda=given.GAE_LAMBDA,
        clip_range=given.CLIP,
        seed=given.SEED,
        device=args.device,
    )
    rounds, clock = -(-args.steps // args.batch), Clock()
    model.learn((rounds + 1) * args.batch, callback=clock)
    times_s = [*clock.times_s[2:], time.perf_counter()]
    envs.close()
    collect_s = sum(times_s[1::2]) - sum(times_s[:-1:2])
    return {
        "steps": rounds * args.batch,
        "seconds": times_s[-1] - times_s[0],
        "episode_return_mean": float(
            np.mean([one["r"] for one in model.ep_info_buffer][-20:] or [0.0])
        ),
        "collect_s": collect_s / rounds,
        "learn_s": (times_s[-1] - times_s[0] - collect_s) / rounds,
    }


if __name__ == "__main__":
    print(json.dumps(main(given.add_game(given.ppo_arguments(__doc__)).parse_args())))
