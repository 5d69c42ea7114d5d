"""Shared settings of all contenders in `benchmarks/whole_training.py` and `benchmarks/gpu`, including ours."""

from __future__ import annotations

import argparse

ENVIRONMENT = "Hopper-v5"
GAMMA, GAE_LAMBDA, CLIP, HIDDEN, SEED = 0.99, 0.95, 0.2, 256, 0
"""The same for all."""
PLAYED_AT_ONCE, FRAMES = 8, 4
"""Copies of a game, and frames that a policy sees."""


def ppo_arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the length of a training, and the PPO settings that differ between runs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=61_440, help="environment steps that count")
    parser.add_argument("--threads", type=int, default=1, help="of the update")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    return parser


def add_game(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments of contenders that can also train on pixels and on a GPU."""
    parser.add_argument("--environment", default=ENVIRONMENT, help="id")
    parser.add_argument("--device", default="cpu", help="device of the update: cpu or cuda")
    return parser


def is_game(environment: str) -> bool:
    """Returns whether this is an Atari game, emulated without skipped frames."""
    return environment.endswith("NoFrameskip-v4")
