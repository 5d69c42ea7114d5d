"""Runs RLlib's unmodified PPO on a game, with a network like ours. Prints its speed as JSON.

    /tmp/peers/bin/python benchmarks/peers/rllib_ppo.py --environment SpaceInvadersNoFrameskip-v4 --device cuda

An env runner, a separate process, plays each copy of the game. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from typing import Any

import gymnasium
import ray
import torch
from ppo_arguments import (
    CLIP,
    FRAMES,
    GAE_LAMBDA,
    GAMMA,
    PLAYED_AT_ONCE,
    SEED,
    add_game,
    is_game,
    ppo_arguments,
)
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

SAMPLED = "num_env_steps_sampled_lifetime"


def main(args: argparse.Namespace) -> dict[str, float]:
    if not is_game(args.environment):
        raise SystemExit("--environment: only games, such as SpaceInvadersNoFrameskip-v4")

    torch.set_num_threads(args.threads)

    def make(_: object) -> gymnasium.Env:
        game = gymnasium.make(f"ale_py:{args.environment}")
        return wrap_atari_for_new_api_stack(game, dim=84, framestack=FRAMES)

    register_env("game", make)
    # One per env runner, even if there are fewer cores.
    ray.init(
        num_cpus=max(PLAYED_AT_ONCE + 1, os.cpu_count() or 1),
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    algorithm = (
        PPOConfig()
        .environment("game")
        .framework("torch")
        .debugging(seed=SEED, log_level="ERROR")
        .env_runners(
            num_env_runners=PLAYED_AT_ONCE, rollout_fragment_length=args.batch // PLAYED_AT_ONCE
        )
        .learners(num_learners=0, num_gpus_per_learner=int(args.device == "cuda"))
        .training(
            train_batch_size_per_learner=args.batch,
            minibatch_size=args.minibatch,
            num_epochs=args.epochs,
            lr=args.learning_rate,
            gamma=GAMMA,
            lambda_=GAE_LAMBDA,
            clip_param=CLIP,
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[16, 8, 4], [32, 4, 2], [256, 11, 1, "valid"]],
                conv_activation="relu",
                vf_share_layers=False,
            )
        )
    ).build_algo()
    update, learned_s = algorithm.learner_group.update, []

    def timed_update(**options: Any) -> Any:
        began_s = time.perf_counter()
        result = update(**options)
        learned_s.append(time.perf_counter() - began_s)
        return result

    algorithm.learner_group.update = timed_update
    first, began_s, rounds = algorithm.train(), time.perf_counter(), -(-args.steps // args.batch)
    for _ in range(rounds):
        last = algorithm.train()
    seconds, learn_s = time.perf_counter() - began_s, sum(learned_s[1:]) / rounds
    algorithm.stop()
    return {
        "steps": last[SAMPLED] - first[SAMPLED],
        "seconds": seconds,
        "collect_s": seconds / rounds - learn_s,
        "learn_s": learn_s,
        "episode_return_mean": last["env_runners"].get("episode_return_mean", 0.0),
    }


if __name__ == "__main__":
    print(json.dumps(main(add_game(ppo_arguments(__doc__)).parse_args())))
