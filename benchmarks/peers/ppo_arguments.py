"""The arguments that every contender of `benchmarks/whole_training.py` takes, ours too."""

from __future__ import annotations

import argparse


def ppo_arguments(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the environment, how long it is trained, and PPO's settings."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=61_440, help="environment steps that count")
    parser.add_argument("--threads", type=int, default=1, help="of the update")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    return parser
