"""Checks that two checkouts train identically: same seed, same synchronous rounds, except for times and dollars.

    python benchmarks/same_history.py record /path/to/checkout histories/before     # with that checkout's own code
    python benchmarks/same_history.py record . histories/after
    python benchmarks/same_history.py compare histories/before histories/after

Floating-point results depend on the processor and on the versions of torch and numpy: record both on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

COMMON = (
    "stop.target_return=null",
    "stop.max_steps=null",
    "evaluation.every_rounds=3",
    "evaluation.episodes=2",
    "scaler.actors_min=2",
    "actor.fragment_steps=128",
    "budget.usd=5.0",
    "fleet.processes=2",
    "learner.threads=1",
)
NITRO = ("scaler.kind=nitro", "scaler.actors_max=6")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hopper": ("hopper", (*NITRO, "stop.max_rounds=9")),
    "walker2d-total-loss": (
        "hopper",
        (
            *NITRO,
            "environment.id=Walker2d-v5",
            "stop.max_rounds=6",
            "detector.objective=total_loss",
            "seed=1",
        ),
    ),
    "halfcheetah-fixed": (
        "halfcheetah",
        ("stop.max_rounds=6", "scaler.kind=fixed", "scaler.actors_fixed=3"),
    ),
    "cartpole": (
        "hopper",
        (
            *NITRO,
            "environment.id=CartPole-v1",
            "stop.max_rounds=9",
            "seed=2",
            "detector.objective=surrogate",
        ),
    ),
    "pendulum-impact": (
        "hopper",
        (
            *NITRO,
            "environment.id=Pendulum-v1",
            "stop.max_rounds=6",
            "algorithm.kind=impact",
            "algorithm.rounds=synchronous",
            "seed=3",
        ),
    ),
    "cartpole-impala": (
        "hopper",
        (
            *NITRO,
            "environment.id=CartPole-v1",
            "stop.max_rounds=6",
            "algorithm.kind=impala",
            "algorithm.rounds=synchronous",
            "seed=4",
        ),
    ),
    "qbert": (
        "qbert",
        (
            *NITRO,
            "stop.max_rounds=2",
            "actor.fragment_steps=32",
            "evaluation.every_rounds=0",
            "detector.subset_size=64",
            "algorithm.ppo.epochs=1",
        ),
    ),
}
"""By name: an experiment file and its overrides."""

LEFT_OUT = ("_s", "_s_mean", "_s_max", "_usd")
"""Endings of keys that hold times and dollars."""


def record(checkout: Path, out: Path) -> None:
    """Trains every case with the code of ``checkout``."""
    for name, (file, settings) in CASES.items():
        directory = (out / name).resolve()
        command = [
            sys.executable,
            "-m",
            "runtime",
            "train",
            f"experiments/{file}.yaml",
            "--out",
            str(directory),
        ]
        for setting in (*COMMON, *settings):
            command += ["--set", setting]
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        done = subprocess.run(
            command,
            cwd=checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(f"{name}: exit code {done.returncode}", flush=True)
        if done.returncode:
            sys.exit(done.stdout)


def compare(before: Path, after: Path) -> bool:
    """Prints every difference. Returns whether there is none."""
    is_same = True
    for name in CASES:
        rounds = [_rounds(path / name) for path in (before, after)]
        if len(rounds[0]) != len(rounds[1]):
            print(f"{name}: {len(rounds[0])} rounds before, {len(rounds[1])} after")
            is_same = False
        differing = {
            f"round {old['round_index']}: {key} {old.get(key)} -> {new.get(key)}"
            for old, new in zip(*rounds, strict=False)
            for key in old.keys() | new.keys()
            if not key.endswith(LEFT_OUT) and old.get(key) != new.get(key)
        }
        for line in sorted(differing):
            print(f"{name}: {line}")
        is_same &= not differing
        print(f"{name}: {len(rounds[1])} rounds, {'the same' if not differing else 'NOT the same'}")
    return is_same


def _rounds(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in (("record", ("checkout", "out")), ("compare", ("before", "after"))):
        command = commands.add_parser(name)
        for argument in arguments:
            command.add_argument(argument, type=Path)
    given = parser.parse_args()
    if given.command == "record":
        record(given.checkout, given.out)
        return 0
    return 0 if compare(given.before, given.after) else 1


if __name__ == "__main__":
    sys.exit(main())
