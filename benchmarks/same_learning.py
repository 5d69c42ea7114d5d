"""Checks that two checkouts learn the same, to the digit: short runs of many kinds, each with two seeds.

    python benchmarks/same_learning.py --base CHECKOUT [CASE ...]

Each case is trained with the code of the base checkout and with this one's. All columns of `rounds.jsonl` count that
the base's schema gives in neither seconds nor dollars nor MiB, except replays; names base columns that no longer exist
here. Ends at the first difference, and names case, seed, round and column. Both run on this machine, because digits
depend on the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SEEDS = ("seed-0", "seed-1")
SHARED = """\
environment: {id: CartPole-v1}
scaler: {kind: fixed, actors_fixed: 3, actors_min: 2}
actor: {fragment_steps: 128}
learner: {threads: 1}
fleet: {processes: 2}
cache: {kind: none}
budget: {usd: 1000}
stop: {max_rounds: 6}
evaluation: {every_rounds: 2, episodes: 2}
"""
"""Settings of all cases. The budget is so large that it decides nothing."""
DURATIONS = {"gradient_s": {"32": [0.02, 0.03, 0.07], "128": [0.1]}, "start_s": [1.5, 2.5]}
"""Recorded seconds of a gradient by samples, and of a start, for the case in virtual time."""
COLUMNS = """\
import json, re
from runtime.records.rows import RoundRow
uncounted = re.compile("_(s|usd|mib)(_|$)|^replayed_steps$")
print(json.dumps([name for name in RoundRow.__annotations__ if not uncounted.search(name)]))
"""


@dataclass(frozen=True)
class Case:
    """A short training.

    Attributes:
        settings: Values of ``--set``.
        is_killed: Whether its second seed is killed after two rounds and resumed.
    """

    settings: str
    is_killed: bool = False


NITRO = "environment.id=Hopper-v5 scaler.kind=nitro scaler.actors_max=6 scaler.window_rounds=3"
SCRIPTED = "fleet.kind=scripted_fleet:ScriptedSettings stop.max_rounds=10"
CASES = {
    "ppo": Case("environment.id=HalfCheetah-v5"),
    "pixels": Case(
        "environment.id=ALE/Qbert-v5 actor.fragment_steps=32 stop.max_rounds=2 cache.kind=redis"
    ),
    "impact": Case("algorithm.kind=impact algorithm.rounds=synchronous"),
    "impala": Case("algorithm.kind=impala algorithm.rounds=synchronous"),
    "nitro": Case(NITRO, is_killed=True),
    "nitro-loss": Case(f"{NITRO} environment.id=CartPole-v1 detector.objective=total_loss"),
    "minions": Case(
        "environment.id=Hopper-v5 scaler.kind=minions scaler.scheduler=hopper stop.target_return=3000"
    ),
    "replayed": Case("environment.id=LunarLander-v3", is_killed=True),
    "function": Case("learner.kind=function"),
    "instances": Case("environment.id=Hopper-v5 learner.kind=gmi learner.instances=2"),
    "worlds": Case(
        "environment.id=docs.example_environment.thermostats:Thermostats environment.backend=torch "
        "learner.kind=gmi learner.instances=2 actor.fragment_steps=32 scaler.actors_fixed=50",
        is_killed=True,
    ),
    "impact-asynchronous": Case(f"{SCRIPTED} algorithm.kind=impact"),
    "impala-asynchronous": Case(f"{SCRIPTED} algorithm.kind=impala"),
    "stellaris": Case(
        "algorithm.minibatch_steps=32 learner.kind=papers.stellaris.virtual:VirtualSettings "
        "learner.durations=durations.json",
    ),
}


def start(checkout: Path, *arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts Python with a checkout's code, and with the scripted fleet."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{HERE / 'benchmarks'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """Returns what a process prints; ends this one if it fails."""
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args}\n{printed}exit code {process.returncode}")
    return printed


def lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a JSONL file that are complete."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]


def train(checkout: Path, settings: str, work: Path, *, is_killed: bool) -> Path:
    """Trains a case with a checkout's code, and returns the directory of its runs."""
    work.mkdir()
    runs = work / "runs"
    (work / "case.yaml").write_text(SHARED)
    (work / "durations.json").write_text(json.dumps(DURATIONS))
    words = ["-m", "runtime", "train", "case.yaml", "--out", str(runs), "--seeds", str(len(SEEDS))]
    for setting in settings.split():
        words += ["--set", setting]
    if is_killed:
        process = start(checkout, *words, cwd=work)
        while process.poll() is None and len(lines(runs / SEEDS[-1] / "rounds.jsonl")) < 2:
            time.sleep(0.02)
        process.kill()
        if process.wait() >= 0:
            sys.exit(f"it ended before it was killed: {output(process)}")
        words.append("--resume")
    output(start(checkout, *words, cwd=work))
    return runs


def difference(base: list[dict[str, Any]], here: list[dict[str, Any]], columns: list[str]) -> str:
    """Returns the first difference between two runs' rows in these columns; empty if there is none."""
    for before, after in zip(base, here, strict=False):
        for name in columns:
            found = [json.dumps(row.get(name, "missing")) for row in (before, after)]
            if found[0] != found[1]:
                return f"round {before['round_index']}, {name}: {found[0]} -> {found[1]}"
    return "" if len(base) == len(here) else f"{len(base)} rounds -> {len(here)}"


def main() -> None:
    """Compares the cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"only these: {', '.join(CASES)}")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(CASES)}")
    base = asked.base.resolve()
    known, still = (json.loads(output(start(of, "-c", COLUMNS, cwd=of))) for of in (base, HERE))
    columns = [name for name in known if name in still]
    print(
        f"{len(columns)} columns; gone: {', '.join(set(known) - set(still)) or 'none'}", flush=True
    )
    for name in asked.cases or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as work:
            before, after = (
                train(checkout, case.settings, Path(work) / side, is_killed=case.is_killed)
                for side, checkout in (("base", base), ("here", HERE))
            )
            for seed in SEEDS:
                rows = [lines(runs / seed / "rounds.jsonl") for runs in (before, after)]
                if found := difference(*rows, columns):
                    sys.exit(f"{name}, {seed}: {found}")
                print(f"{name}, {seed}: {len(rows[0])} rounds, equal", flush=True)


if __name__ == "__main__":
    main()
