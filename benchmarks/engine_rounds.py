"""Trains some rounds with the real engine, with detector and evaluation off. Prints their speed as JSON.

    python benchmarks/engine_rounds.py --steps 61440

It is `python -m runtime train` with another display, which records when each round finished, including rows and
checkpoint. The first round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.ppo_arguments import (
    CLIP,
    FRAMES,
    GAE_LAMBDA,
    GAMMA,
    SEED,
    add_game,
    is_game,
    ppo_arguments,
)  # noqa: E402

from runtime.experiment.loading import experiment_from_tree  # noqa: E402
from runtime.records.observers import Display  # noqa: E402
from runtime.training.backends import make_backend  # noqa: E402
from runtime.training.run import train  # noqa: E402

ACTORS = 8


class Clock(Display):
    """A display that records when rounds finished."""

    def __init__(self) -> None:
        self.finished_s: list[float] = []
        self.rows: list = []

    def on_round_end(self, row) -> None:
        self.finished_s.append(time.perf_counter())
        self.rows.append(row)


def main(args: argparse.Namespace) -> dict[str, float]:
    rounds = -(-args.steps // args.batch)
    experiment = experiment_from_tree(
        {
            "environment": {
                "id": args.environment,
                **({"frame_stack": FRAMES} if is_game(args.environment) else {}),
            },
            "algorithm": {
                "kind": "ppo",
                "epochs": args.epochs,
                "minibatch_steps": args.minibatch,
                "learning_rate": args.learning_rate,
                "discount": GAMMA,
                "gae_lambda": GAE_LAMBDA,
                "clip": CLIP,
            },
            "scaler": {"kind": "fixed", "actors_fixed": ACTORS, "actors_min": ACTORS},
            "actor": {"fragment_steps": args.batch // ACTORS},
            "learner": {
                "threads": args.threads,
                "device": args.device,
                **(
                    {
                        "kind": "gmi",
                        "instances": args.instances,
                        "reduction": args.reduction,
                    }
                    if args.instances
                    else {}
                ),
            },
            "evaluation": {"every_rounds": 0},
            "budget": {"usd": 1000.0},
            "stop": {"max_rounds": rounds + 1},
            "seed": SEED,
        },
        source="benchmark",
    ).resolved()
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        result = train(
            experiment,
            Path(out) / "run",
            backend=make_backend(experiment),
            resume=False,
            display=clock,
            name="benchmark",
        )
    if result.exit_code:
        raise SystemExit(f"the training failed: {result.error or result.summary}")
    returns = [row.episode_return_mean for row in clock.rows if row.episode_return_mean is not None]
    return {
        "steps": sum(row.env_steps for row in clock.rows[1:]),
        "seconds": clock.finished_s[-1] - clock.finished_s[0],
        "episode_return_mean": returns[-1] if returns else 0.0,
        "collect_s": sum(row.collect_s for row in clock.rows[1:]) / rounds,
        "learn_s": sum(row.learn_s for row in clock.rows[1:]) / rounds,
    }


if __name__ == "__main__":
    parser = add_game(ppo_arguments(__doc__))
    parser.add_argument(
        "--instances", type=int, default=0, help="instances that play and train; 0 = one learner"
    )
    parser.add_argument("--reduction", default="mpr", help="how instances sum gradients")
    print(json.dumps(main(parser.parse_args())))
