r"""Trains an experiment with several seeds, one after the other, and evaluates each policy again.

    python benchmarks/seeds.py experiments/hopper.yaml 10 cache.kind=none --beside experiments/hopper-fixed.yaml \
        --work WORK > benchmarks/results/hopper_seeds.json

Arguments after the number of seeds are settings of the experiment, as ``--set`` takes them. A run stops at the
evaluation that reached its target, which favours lucky evaluations. So each final policy is evaluated on 100 other
start states, with its best actions and with sampled ones.

``--first-seed 100`` begins there. ``--arithmetic avx2 default`` trains each seed once with each of these values of
torch's ATEN_CPU_CAPABILITY; ``native`` leaves it unset. ``--beside FILE`` also trains another file, in turn with the
first, so that a machine that slows down does so for both. Runs are kept in ``--work``, and a second call with the same
arguments continues there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import origin  # noqa: E402

EPISODES, EVALUATION_SEED = 100, 1_000_000
NATIVE = "native"


def run(arithmetic: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {} if arithmetic == NATIVE else {"ATEN_CPU_CAPABILITY": arithmetic}
    return subprocess.run(
        [sys.executable, "-m", "runtime", *arguments],
        cwd=ROOT,
        check=True,
        text=True,
        env=environment,
        stdout=subprocess.PIPE,
    ).stdout


def train_and_evaluate(
    experiment: str,
    seed: int,
    settings: Sequence[str],
    out: Path,
    arithmetic: str = NATIVE,
) -> dict[str, float | str | int]:
    options = [part for setting in (*settings, f"seed={seed}") for part in ("--set", setting)]
    run(arithmetic, "train", experiment, "--out", str(out), "--resume", *options)
    summary = json.loads((out / "summary.json").read_text())
    anew, sampled = (
        json.loads(
            run(
                arithmetic,
                "evaluate",
                str(out),
                "--episodes",
                str(EPISODES),
                "--seed",
                str(EVALUATION_SEED),
                actions,
            )
        )
        for actions in ("--no-stochastic", "--stochastic")
    )
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    seconds = sum(row["round_s"] for row in rows)
    return {
        "seed": seed,
        "arithmetic": arithmetic,
        **{key: summary[key] for key in ("stop_reason", "rounds", "env_steps_total", "actors")},
        "evaluation_return_mean_at_the_end": summary["evaluation_return_mean"],
        f"evaluation_return_mean_of_{EPISODES}_others": anew["evaluation_return_mean"],
        f"evaluation_return_min_of_{EPISODES}_others": anew["evaluation_return_min"],
        f"sampled_return_mean_of_{EPISODES}_others": sampled["evaluation_return_mean"],
        "episode_return_mean_in_training": summary["episode_return_mean"],
        **{key: summary[key] for key in ("spent_usd", "actors_cost_usd", "learner_cost_usd")},
        "seconds_of_rounds": seconds,
        "steps_per_s": summary["env_steps_total"] / seconds,
        "share_of_detection": sum(row["detect_s"] or 0.0 for row in rows) / seconds,
    }


def medians(found: Sequence[dict[str, float | str | int]]) -> dict[str, float]:
    return {
        key: statistics.median(float(one[key]) for one in found)
        for key in found[0]
        if key not in ("seed", "arithmetic", "stop_reason")
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment")
    parser.add_argument("seeds", type=int, metavar="SEEDS")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    parser.add_argument("--arithmetic", nargs="+", default=[NATIVE], metavar="NAME")
    parser.add_argument("--beside", metavar="EXPERIMENT", help="another file, to compare with")
    asked = parser.parse_intermixed_args()
    if asked.seeds < 1:
        parser.error(f"SEEDS is {asked.seeds}; allowed: from 1")
    contenders = {"seeds": asked.experiment}
    if asked.beside:
        contenders["beside_seeds"] = asked.beside
    results: dict[str, list[dict[str, float | str | int]]] = {name: [] for name in contenders}
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        for arithmetic in asked.arithmetic:
            for name, experiment in contenders.items():
                out = (asked.work / name / f"{seed}-{arithmetic}").resolve()
                results[name].append(
                    train_and_evaluate(experiment, seed, asked.settings, out, arithmetic)
                )
                print(name, results[name][-1], file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                **origin(" ".join(("python", *sys.orig_argv[1:]))),
                "medians": {name: medians(found) for name, found in results.items()},
                **results,
            },
            indent=2,
        )
    )
