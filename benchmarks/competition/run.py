r"""Trains what competes, and keeps what was found: settings are chosen on some seeds, and other seeds are reported.

    python -m benchmarks.competition.run hopper --work WORK [--jobs 2] [--minutes 60]

Goes on where it stopped, also in the middle of a training. Results do not depend on how busy the machine is: the bill
is modelled from counted work; but an actor that times out, because somebody stops the processes, is billed, so runs
with failed actors (`actors_failed`) are to be deleted and made again. Writes
benchmarks/results/competition/WORKLOAD.json after each finished run, with what `benchmarks.competition.analyse` needs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.competition.plan import RULES, TUNING_SEEDS, WORKLOADS, Run, reported_runs, tuning_runs
from benchmarks.seeds import commit_of
from runtime.config.loading import load_experiment
from runtime.cost.rates import Rates, tabled
from runtime.records.layout import RATES
from runtime.scaler.saved_scheduler import load_scheduler
from runtime.training.preflight import preflight

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "competition"
FINISHED = ("target_return", "max_steps", "max_rounds", "budget")
"""Reasons to stop that end a run for good."""
SERIES = ("env_steps_total", "actor_count", "round_cost_usd", "modelled_round_s", "evaluation_return_mean",
          "episode_return_mean", "episodes_finished", "convexity_ratio", "boosting_score", "noise_scale")
"""Columns of rounds.jsonl that are kept."""
COSTS = {"spent_usd": "round_cost_usd", "learner_cost_usd": "learner_cost_usd", "actors_cost_usd": "actors_cost_usd",
         "infrastructure_cost_usd": "infrastructure_cost_usd"}
"""What a run cost, by the columns that add up to it: a summary also has what a run that was killed had reserved."""
COMMITS = "commits.txt"
"""Ends the name of a file beside a run's directory, which has the commit of each session."""


def is_finished(directory: Path) -> bool:
    """Returns whether a run is there and over."""
    path = directory / "summary.json"
    return path.is_file() and json.loads(path.read_text())["stop_reason"] in FINISHED


def train(run: Run) -> None:
    """Trains one run to its end, from wherever it is.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    with (run.directory.parent / f"{run.directory.name}.{COMMITS}").open("a") as commits:
        commits.write(f"{commit_of(ROOT)}\n")
    if run.step_s is not None and not (run.directory / RATES).exists():
        units = {**tabled(preflight(load_experiment(ROOT / run.file).resolved())[1]),
                 "step_s": run.step_s, "evaluated_step_s": run.step_s}
        run.directory.mkdir(parents=True, exist_ok=True)
        Rates(f"the table, as if a step took {run.step_s:g} s", units, run.directory / RATES).save()
    options = [part for key, value in run.settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    with (run.directory.parent / f"{run.directory.name}.log").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "runtime", "train", run.file, "--out", str(run.directory),
             "--resume", *options], cwd=ROOT, check=True, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})


def train_all(runs: Iterable[Run], *, jobs: int, until_s: float, note: Any) -> None:
    """Trains what is not finished, several at a time; begins none after ``until_s``."""
    open_runs = [run for run in runs if not is_finished(run.directory)]
    done = {run.directory: threading.Event() for run in open_runs}

    def one(run: Run) -> None:
        try:
            if run.needs in done:
                done[run.needs].wait()
            if time.monotonic() < until_s and (run.needs is None or is_finished(run.needs)):
                run.directory.parent.mkdir(parents=True, exist_ok=True)
                train(run)
                note()
        except subprocess.CalledProcessError as error:
            print(f"{run.directory}: ended with {error.returncode}; see its log", file=sys.stderr, flush=True)
        finally:
            done[run.directory].set()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, open_runs))


def kept(run: Run) -> dict[str, Any]:
    """Returns what is kept of a finished run."""
    summary = json.loads((run.directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (run.directory / "rounds.jsonl").read_text().splitlines()]
    commits = run.directory.parent / f"{run.directory.name}.{COMMITS}"
    return {
        "rule": run.rule, "settings": run.candidate, "seed": run.seed,
        "commits": commits.read_text().split() if commits.exists() else [],
        **{name: summary[name] for name in ("stop_reason", "rounds", "env_steps_total", "evaluation_return_mean",
                                            "actors_failed")},
        **{name: sum(row[column] for row in rows) for name, column in COSTS.items()},
        "modelled_s": sum(row["modelled_round_s"] + (row["modelled_evaluate_s"] or 0.0) for row in rows),
        "measured_session_s": summary["measured_session_s"],
        "rows": {name: [short(row[name]) for row in rows] for name in SERIES},
    }


def settings_of(workload: str) -> str:
    """Returns the workload on which the settings are chosen."""
    return WORKLOADS[workload].settings_of or workload


def chosen_settings(workload: str, work: Path) -> dict[str, str]:
    """Returns what tuning has chosen for each rule of which no run is missing; of another workload, as published."""
    if settings_of(workload) != workload:
        published: dict[str, str] = json.loads((RESULTS / f"{settings_of(workload)}.json").read_text())["chosen"]
        return published
    return choose([kept(run) for run in tuning_runs(workload, work) if is_finished(run.directory)])


def choose(found: list[dict[str, Any]]) -> dict[str, str]:
    """Returns each rule's settings with the fewest cents to the target in the mean of the tuning seeds.

    A run that does not get there counts as twice what it spent. A rule is left out until all of its tuning runs are
    there, so that one that is added later does not change what was chosen for the others.
    """
    chosen = {}
    for rule, candidates in RULES.items():
        if len(candidates) == 1:
            chosen[rule] = next(iter(candidates))
            continue
        scores = {}
        for candidate in candidates:
            runs = [one for one in found if one["rule"] == rule and one["settings"] == candidate]
            if len(runs) == len(TUNING_SEEDS):
                scores[candidate] = statistics.mean(
                    100.0 * one["spent_usd"] * (1.0 if one["stop_reason"] == "target_return" else 2.0) for one in runs)
        if candidates and len(scores) == len(candidates):
            chosen[rule] = min(scores, key=scores.__getitem__)
    return chosen


def write(workload: str, work: Path) -> None:
    """Writes what is there so far."""
    tunes = list(tuning_runs(workload, work)) if settings_of(workload) == workload else []
    tuned = [kept(run) for run in tunes if is_finished(run.directory)]
    chosen = chosen_settings(workload, work)
    runs = [kept(run) for run in reported_runs(workload, work, chosen) if is_finished(run.directory)]
    for one in tuned:
        del one["rows"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    everything = {
        "command": f"python -m benchmarks.competition.run {workload} --work WORK", "commit": commit_of(ROOT),
        "date": time.strftime("%Y-%m-%d"), "hardware": f"{os.cpu_count()} cores, shared",
        "workload": vars(WORKLOADS[workload]),
        "finished": {"tuning": f"{len(tuned)} of {len(tunes)}", "reported": len(runs)},
        "compute_hours": sum(one["measured_session_s"] for one in tuned + runs) / 3600.0,
        "pretraining_usd": {"minions": load_scheduler(WORKLOADS[workload].scheduler).spent_usd},
        "chosen": chosen, "tuning": tuned, "runs": runs}
    temporary = RESULTS / f"{workload}.json.tmp"
    temporary.write_text(json.dumps(everything))
    temporary.replace(RESULTS / f"{workload}.json")


def short(value: float | None) -> float | None:
    """Returns a number of five digits."""
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no training after so many")
    asked = parser.parse_args()
    work, until_s = asked.work.resolve(), time.monotonic() + 60.0 * asked.minutes
    lock = threading.Lock()

    def note() -> None:
        with lock:
            write(asked.workload, work)

    tuned_on = settings_of(asked.workload)
    if tuned_on == asked.workload:
        train_all(tuning_runs(tuned_on, work), jobs=asked.jobs, until_s=until_s, note=note)
    chosen = chosen_settings(asked.workload, work)
    if missing := [rule for rule, candidates in RULES.items() if candidates and rule not in chosen]:
        print(f"settings of {', '.join(missing)} are not chosen yet: tuning runs of {tuned_on} are missing; its own "
              "command goes on", file=sys.stderr)
    train_all(reported_runs(asked.workload, work, chosen), jobs=asked.jobs, until_s=until_s, note=note)
    note()


if __name__ == "__main__":
    main()
