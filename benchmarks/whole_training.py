"""Compares whole trainings in environment steps per second: ours, a base's, and the peers'.

    python -m venv /tmp/peers && /tmp/peers/bin/python -m pip install -r benchmarks/peers/requirements.txt
    python -m benchmarks.whole_training --peers /tmp/peers/bin/python [--base CHECKOUT] [--repeats 7] [--steps 61440]

Contenders take turns, each in its own process, a base with its own engine_rounds.py. Ratios are taken turn by turn, so
that drifts in the machine's speed cancel out, and their medians are shown. Imports and the first round do not count.
Evaluation and detector are off. Contenders with a choice of threads run with one and with two, and the faster counts.
Keep the machine idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.provenance import ROOT, origin

SETTINGS = {
    "minibatch 256": {"batch": 4096, "epochs": 10, "minibatch": 256, "learning-rate": 3e-4},
    "example": {"batch": 2048, "epochs": 5, "minibatch": 64, "learning-rate": 3e-4},
}
"""By name: 10 epochs over 4,096 steps; and the settings of experiments/hopper-fixed.yaml."""


@dataclass
class Contender:
    """One program and its speeds, in steps a second, by turn."""

    family: str
    command: list[str]
    checkout: Path | None = None
    runs: list[dict] = field(default_factory=list)

    def run(self, arguments: list[str]) -> None:
        environment = {
            **os.environ,
            **({"PYTHONPATH": str(self.checkout)} if self.checkout else {}),
        }
        done = subprocess.run(
            [*self.command, *arguments],
            env=environment,
            cwd=self.checkout or ROOT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{' '.join(self.command)} failed:\n{done.stderr[-3000:]}")
        self.runs.append(json.loads(done.stdout.splitlines()[-1]))

    @property
    def speeds(self) -> list[float]:
        return [run["steps"] / run["seconds"] for run in self.runs]


def contenders(args: argparse.Namespace) -> dict[str, Contender]:
    """Returns contenders by name. All have the same minibatch size."""
    here = str(ROOT / "benchmarks")
    checkouts = {"ours": ROOT, **({"base": Path(args.base).resolve()} if args.base else {})}
    found = {}
    for threads in (1, 2):
        more = ["--threads", str(threads)]
        for name, checkout in checkouts.items():
            engine = [sys.executable, f"{checkout}/benchmarks/engine_rounds.py", *more]
            found[f"{name}, {threads} threads"] = Contender(name, engine, checkout)
        if args.peers:
            found[f"EnvPool + CleanRL, 64 environments, {threads} threads"] = Contender(
                "EnvPool + CleanRL", [args.peers, f"{here}/peers/envpool_cleanrl.py", *more]
            )
            found[f"stable-baselines3, 2 environments, {threads} threads"] = Contender(
                "stable-baselines3", [args.peers, f"{here}/peers/sb3_ppo.py", *more]
            )
    return found


def summarise(found: dict[str, Contender]) -> dict[str, dict]:
    """Returns speeds, and the per-turn ratios of our faster variant to the faster of each family."""
    best: dict[str, str] = {}
    for name, one in found.items():
        if one.family not in best or statistics.median(one.speeds) > statistics.median(
            found[best[one.family]].speeds
        ):
            best[one.family] = name
    ours = found[best["ours"]].speeds
    return {
        name: {
            "family": one.family,
            "is_best_of_family": best[one.family] == name,
            "steps_per_s_median": statistics.median(one.speeds),
            "steps_per_s": one.speeds,
            "ours_over_it_median": statistics.median(
                a / b for a, b in zip(ours, one.speeds, strict=True)
            ),
            "runs": one.runs,
        }
        for name, one in found.items()
    }


def table(name: str, summary: dict[str, dict]) -> str:
    lines = [f"{name:<52}{'steps/s':>9}{'min':>8}{'max':>8}{'ours / it':>11}"]
    for contender, row in summary.items():
        speeds, mark = row["steps_per_s"], "*" if row["is_best_of_family"] else " "
        lines.append(
            f"{mark} {contender:<50}{row['steps_per_s_median']:>9,.0f}{min(speeds):>8,.0f}{max(speeds):>8,.0f}"
            f"{row['ours_over_it_median']:>11.2f}"
        )
    return "\n".join(lines)


def compare(name: str, found: dict[str, Contender], options: dict, repeats: int) -> dict:
    """Lets contenders take turns with the same arguments; prints and returns their summary."""
    arguments = [f"--{key}={value}" for key, value in options.items()]
    for turn in range(repeats):
        for one in found.values():
            one.run(arguments)
        print(f"{name}: turn {turn + 1} of {repeats}", file=sys.stderr, flush=True)
    summary = summarise(found)
    print(table(name, summary) + "\n", flush=True)
    return summary


def main(args: argparse.Namespace) -> None:
    results = {
        **origin(f"python -m benchmarks.whole_training {' '.join(sys.argv[1:])}"),
        "steps": args.steps,
        "load_before": os.getloadavg(),
        "settings": {},
    }
    for name, setting in SETTINGS.items():
        options = {"steps": args.steps, **setting}
        summary = compare(name, contenders(args), options, args.repeats)
        results["settings"][name] = {"of": setting, "contenders": summary}
    Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers", help="Python of the peers' environment; none = they are left out"
    )
    parser.add_argument("--base", help="checkout to compare with, run with this Python")
    parser.add_argument(
        "--steps", type=int, default=61_440, help="environment steps of each run that count"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--out", default=str(ROOT / "benchmarks" / "results" / "whole_training.json")
    )
    main(parser.parse_args())
