r"""Runs the competition: chooses settings on some seeds, and reports others.

    python -m papers.competition.run hopper --work WORK [--jobs 2] [--minutes 60]

Continues where it stopped, even in the middle of a training. Results do not depend on the load of the machine, because
the bill is modelled from counted work. But an actor that times out because its process was stopped is billed, so delete
and repeat runs with failed actors (`actors_failed`). Writes papers/competition/results/WORKLOAD.json after each
finished run, with the data for `papers.competition.analyse`.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.provenance import origin
from papers.competition.plan import (
    RESULTS,
    RULES,
    TUNING_SEEDS,
    WORKLOADS,
    reported_runs,
    tuning_runs,
)
from papers.runs import Run
from papers.trainings import asked_for, columns, is_finished, records, train_all, write_whole
from runtime.scaler.saved_scheduler import load_scheduler

SERIES = (
    "env_steps_total",
    "actor_count",
    "round_cost_usd",
    "modelled_round_s",
    "evaluation_return_mean",
    "episode_return_mean",
    "episodes_finished",
    "convexity_ratio",
    "boosting_score",
    "noise_scale",
)
"""Columns of rounds.jsonl to keep."""
COSTS = {
    "spent_usd": "round_cost_usd",
    "learner_cost_usd": "learner_cost_usd",
    "actors_cost_usd": "actors_cost_usd",
    "infrastructure_cost_usd": "infrastructure_cost_usd",
}
"""Columns that add up to a run's cost. A summary also includes the reservations of a killed run."""


def kept(run: Run) -> dict[str, Any]:
    """Returns the data to keep of a finished run."""
    summary, rows, commits = records(run)
    return {
        "rule": run.rule,
        "settings": run.candidate,
        "seed": run.seed,
        "commits": commits,
        **{
            name: summary[name]
            for name in (
                "stop_reason",
                "rounds",
                "env_steps_total",
                "evaluation_return_mean",
                "actors_failed",
            )
        },
        **{name: sum(row[column] for row in rows) for name, column in COSTS.items()},
        "modelled_s": sum(
            row["modelled_round_s"] + (row["modelled_evaluate_s"] or 0.0) for row in rows
        ),
        "measured_session_s": summary["measured_session_s"],
        "rows": columns(rows, SERIES),
    }


def settings_of(workload: str) -> str:
    """Returns the workload on which the settings are chosen."""
    return WORKLOADS[workload].settings_of or workload


def chosen_settings(workload: str, work: Path) -> dict[str, str]:
    """Returns tuning's choice for each rule with complete runs; another workload's as published."""
    if settings_of(workload) != workload:
        published: dict[str, str] = json.loads(
            (RESULTS / f"{settings_of(workload)}.json").read_text()
        )["chosen"]
        return published
    return choose([kept(run) for run in tuning_runs(workload, work) if is_finished(run.directory)])


def choose(found: list[dict[str, Any]]) -> dict[str, str]:
    """Returns each rule's settings with the fewest mean cents to the target over the tuning seeds.

    A run that misses the target counts twice its cost. A rule is omitted until all its tuning runs exist, so that
    adding a rule does not change the choices for others.
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
                    100.0
                    * one["spent_usd"]
                    * (1.0 if one["stop_reason"] == "target_return" else 2.0)
                    for one in runs
                )
        if candidates and len(scores) == len(candidates):
            chosen[rule] = min(scores, key=scores.__getitem__)
    return chosen


def write(workload: str, work: Path) -> None:
    """Writes the results so far."""
    tunes = list(tuning_runs(workload, work)) if settings_of(workload) == workload else []
    tuned = [kept(run) for run in tunes if is_finished(run.directory)]
    chosen = chosen_settings(workload, work)
    runs = [
        kept(run) for run in reported_runs(workload, work, chosen) if is_finished(run.directory)
    ]
    for one in tuned:
        del one["rows"]
    write_whole(
        RESULTS / f"{workload}.json",
        {
            **origin(f"python -m papers.competition.run {workload} --work WORK"),
            "workload": vars(WORKLOADS[workload]),
            "finished": {"tuning": f"{len(tuned)} of {len(tunes)}", "reported": len(runs)},
            "compute_hours": sum(one["measured_session_s"] for one in tuned + runs) / 3600.0,
            "pretraining_usd": {"minions": load_scheduler(WORKLOADS[workload].scheduler).spent_usd},
            "chosen": chosen,
            "tuning": tuned,
            "runs": runs,
        },
    )


def main() -> None:
    asked = asked_for(__doc__, WORKLOADS)
    note, tuned_on = partial(write, asked.workload, asked.work), settings_of(asked.workload)
    if tuned_on == asked.workload:
        train_all(
            tuning_runs(tuned_on, asked.work), jobs=asked.jobs, until_s=asked.until_s, note=note
        )
    chosen = chosen_settings(asked.workload, asked.work)
    if missing := [rule for rule, candidates in RULES.items() if candidates and rule not in chosen]:
        print(
            f"settings of {', '.join(missing)} are not chosen yet: tuning runs of {tuned_on} are missing; its own "
            "command continues",
            file=sys.stderr,
        )
    train_all(
        reported_runs(asked.workload, asked.work, chosen),
        jobs=asked.jobs,
        until_s=asked.until_s,
        note=note,
    )
    note()


if __name__ == "__main__":
    main()
