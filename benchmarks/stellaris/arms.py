r"""Six arms of Stellaris on Hopper, in virtual time: what asynchrony, bound, rates and truncation each change.

    python -m benchmarks.stellaris.arms --work WORK [--arms async +bound] [--seeds 0 1 2 3 4] [--jobs 2] [--minutes 60]

Each arm is experiments/stellaris/hopper.yaml with other settings of `learner.stellaris` and of the minibatch, trained
for 60 rounds, with gradients that arrive when the durations in hopper_durations.json are over. Goes on where it ended,
also in the middle of a training, and gives the same numbers then. Results do not depend on how busy the machine is; a
run takes about 7 s a round on one busy core. Writes benchmarks/results/stellaris/hopper.json after each finished run,
and prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.competition.plan import Run
from benchmarks.competition.run import is_finished, train_all
from benchmarks.seeds import commit_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "stellaris" / "hopper.json"
FILE = "experiments/stellaris/hopper.yaml"
ROUNDS_COMPARED = 20
TARGET = 600.0
"""A return of evaluation, chosen before any two arms had been compared."""
SERIES = ("env_steps_total", "round_cost_usd", "learner_cost_usd", "modelled_round_s", "modelled_learn_s",
          "evaluation_return_mean", "evaluation_round", "episode_return_mean", "gradients", "aggregations",
          "gradient_staleness_mean", "staleness_bound", "truncated_fraction", "kl")
SHARED = {
    "learner.kind": "stellaris", "learner.stellaris.place": "virtual", "learner.threads": 1, "fleet.processes": 1,
    "learner.stellaris.durations": "benchmarks/stellaris/hopper_durations.json", "learner.update_timeout_s": 3600,
    "stop.max_rounds": 60, "evaluation.every_rounds": 5}
"""Of all arms. One thread and one actor process give the same runs as more of them. There is no target in the file:
with one, evaluations come when it is near, and not every five rounds."""


def _arm(learners: int, minibatch: int, decay: float | None, root: float | None, truncation: float | None
         ) -> Mapping[str, object]:
    return {"algorithm.ppo.minibatch_steps": minibatch, "learner.stellaris.learners": learners,
            "learner.stellaris.staleness_decay": decay, "learner.stellaris.learning_rate_root": root,
            "learner.stellaris.truncation": truncation}


ARMS: Mapping[str, Mapping[str, object]] = {
    "sync-4096": _arm(1, 4096, None, None, None),
    "sync-1024": _arm(1, 1024, None, None, None),
    "async": _arm(4, 1024, None, None, None),
    "+bound": _arm(4, 1024, 0.9, None, None),
    "+rates": _arm(4, 1024, 0.9, 3.0, None),
    "+truncation": _arm(4, 1024, 0.9, 3.0, 1.0),
}
"""One learner without mechanisms is PPO, to the bit: sync-4096 is the paper's baseline, and sync-1024 the control that
it lacks, with as many steps as the asynchronous arms make. Each of the others adds one mechanism to the one before."""


def runs(work: Path, arms: Sequence[str], seeds: Sequence[int]) -> Iterator[Run]:
    """Yields the runs, seed by seed, so that the arms stay comparable whenever somebody stops."""
    for seed in seeds:
        for arm in arms:
            yield Run(FILE, arm, arm, seed, {**SHARED, **ARMS[arm], "seed": seed}, work / arm / f"seed-{seed}")


def kept(run: Run) -> dict[str, Any]:
    """Returns what is kept of a finished run."""
    summary = json.loads((run.directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (run.directory / "rounds.jsonl").read_text().splitlines()]
    return {"arm": run.rule, "seed": run.seed,
            **{name: summary[name] for name in ("stop_reason", "rounds", "env_steps_total", "measured_session_s")},
            "rows": {name: [row[name] for row in rows] for name in SERIES}}


def figures(one: Mapping[str, Any]) -> dict[str, float]:
    """Returns what the arms are compared by, of one run: NaN = it did not get there."""
    rows = one["rows"]
    evaluated = {index: value for index, value in zip(rows["evaluation_round"], rows["evaluation_return_mean"],
                                                      strict=True) if value is not None}
    hit = min((index for index, value in evaluated.items() if value >= TARGET), default=None)

    def spent(name: str, until: int | None) -> float:
        return math.nan if until is None else sum(rows[name][:until])

    return {
        f"return after {ROUNDS_COMPARED} rounds": evaluated.get(ROUNDS_COMPARED, math.nan),
        f"learn s of {ROUNDS_COMPARED} rounds": spent("modelled_learn_s", ROUNDS_COMPARED),
        f"learner $ of {ROUNDS_COMPARED} rounds": spent("learner_cost_usd", ROUNDS_COMPARED),
        "rounds to target": math.nan if hit is None else hit,
        "s to target": spent("modelled_round_s", hit),
        "$ to target": spent("round_cost_usd", hit),
    }


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns medians over seeds as Markdown, and how many seeds got to the target."""
    lines: list[str] = []
    for arm in ARMS:
        every = [figures(one) for one in found if one["arm"] == arm]
        if not every:
            continue
        if not lines:
            lines += ["| arm | seeds | hit | " + " | ".join(every[0]) + " |", "|---" * (3 + len(every[0])) + "|"]
        # A run that does not get to the target counts as later than any.
        middle = [statistics.median(math.inf if math.isnan(one[name]) else one[name] for one in every)
                  for name in every[0]]
        hits = sum(not math.isnan(one["rounds to target"]) for one in every)
        lines.append(f"| {arm} | {len(every)} | {hits} | " + " | ".join(f"{value:.4g}" for value in middle) + " |")
    return lines


def main() -> None:
    """Trains what is missing, and writes what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after so many")
    asked = parser.parse_args()
    work, lock = asked.work.resolve(), threading.Lock()

    def note() -> None:
        with lock:
            found = [kept(run) for run in runs(work, list(ARMS), asked.seeds) if is_finished(run.directory)]
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps({
                "command": "python -m benchmarks.stellaris.arms --work WORK", "commit": commit_of(ROOT),
                "date": time.strftime("%Y-%m-%d"), "time": "virtual, from benchmarks/stellaris/hopper_durations.json",
                "shared": SHARED, "arms": ARMS, "runs": found}))
            print("\n".join(table(found)), flush=True)

    train_all(runs(work, asked.arms, asked.seeds), jobs=asked.jobs,
              until_s=time.monotonic() + 60.0 * asked.minutes, note=note)


if __name__ == "__main__":
    main()
