"""Trains one experiment with several seeds under one budget, and summarizes them.

A killed seed counts with what its ledger has spent and reserved, so the shares never exceed the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.errors import (
    BudgetTooSmallError,
    ExperimentError,
    RunDirectoryError,
    RunError,
)
from runtime.experiment.resolved import ResolvedExperiment
from runtime.records import layout
from runtime.records.files import read_json_object, remove, to_json, write_atomically
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_in
from runtime.show.estimates import CONFIDENCE, RESAMPLES, ended_by_itself, estimates
from runtime.training.resume import check_same_experiment, finished_summary, stored_experiment
from runtime.training.run import RunResult

TrainOne = Callable[[ResolvedExperiment, Path], RunResult]
"""Trains one seed in its directory, or resumes it."""
_COPIED = (
    "stop_reason",
    "error",
    "rounds",
    "env_steps_total",
    "evaluation_return_mean",
    "evaluation_return_best",
    "evaluation_round_best",
    "best_policy_file",
    "episode_return_mean",
    "spent_usd",
    "budget_usd",
    "measured_session_s",
)
"""Keys of a run's summary in the summary of all."""


def fair_share_usd(
    budget_usd: float, *, finished_usd: float, others_usd: float, unfinished: int
) -> float:
    """Returns a run's share of the budget, including its spending so far.

    Args:
        finished_usd: Dollars spent by finished runs.
        others_usd: Dollars spent by all other runs, finished or not.
        unfinished: Number of unfinished runs, including this one.

    Returns:
        An equal share of the money that the finished runs left.
    """
    return max(0.0, min((budget_usd - finished_usd) / unfinished, budget_usd - others_usd))


def train_seeds(
    experiment: ResolvedExperiment,
    out: Path,
    train_one: TrainOne,
    *,
    count: int,
    resume: bool,
    say: Callable[[str], None],
    name: str,
) -> RunResult:
    """Trains several consecutive seeds, starting with the experiment's own, each in ``out/seed-S``.

    Args:
        experiment: Resolved; its budget is for all seeds together.
        out: Their directory.
        train_one: Trains a seed; gets its experiment, with its share of the budget.
        count: Number of seeds.
        resume: Continue the runs in ``out``: finished seeds stay as they are, an unfinished one continues.
        say: Shows a line.
        name: The experiment's name, for people.

    Returns:
        The summary of all seeds, and the exit code: 0, or the code of the first run that failed or was interrupted,
        after which no other starts.

    Raises:
        RunError: Nothing was started: the directory is not usable, or the budget is too small for this many seeds.
    """
    runs = {seed: out / f"seed-{seed}" for seed in range(experiment.seed, experiment.seed + count)}
    directory = RunDirectory(out)
    is_new = not directory.holds_run and not layout.seeds_in(out)
    result = RunResult({})
    has_trained = False

    def write_summary(stop_reason: str) -> Mapping[str, Any]:
        summary = _summary(experiment, runs, name=name, stop_reason=stop_reason)
        write_atomically(out / layout.SUMMARY, to_json(summary))
        return summary

    try:
        changed = _check_directory(directory, experiment, count, resume=resume)
        write_summary("unfinished")
        write_atomically(out / layout.CONFIG, experiment.to_yaml().encode())
        for key, values in changed.items():
            say(f"! {key}: {values}")
        spent_usd = {seed: spent_in(path).most_usd for seed, path in runs.items()}
        for number, (seed, path) in enumerate(runs.items()):
            share_usd = fair_share_usd(
                experiment.budget.usd,
                finished_usd=sum(list(spent_usd.values())[:number]),
                others_usd=sum(usd for other, usd in spent_usd.items() if other != seed),
                unfinished=count - number,
            )
            budget = experiment.budget.model_copy(update={"usd": share_usd})
            following = experiment.model_copy(update={"seed": seed, "budget": budget})
            if finished_summary(following, path) is not None:
                continue
            try:
                result = train_one(following, path)
            except KeyboardInterrupt as interrupt:
                result = RunResult({}, getattr(interrupt, "exit_code", 130))
            except RunError as error:
                if not has_trained and isinstance(error, BudgetTooSmallError):
                    raise ExperimentError(
                        f"--seeds {count} share budget.usd = {experiment.budget.usd:g}; for seed {seed}, {error}"
                    ) from None
                if not has_trained:
                    raise
                say(f"error: {error}")
                result = RunResult({}, 1, error)
            has_trained = True
            spent_usd[seed] = spent_in(path).most_usd
            if result.exit_code:
                break
            write_summary("unfinished")
        reasons = {0: "finished", 1: "failed"}
        summary = write_summary(reasons.get(result.exit_code, "interrupted"))
        return RunResult(summary, result.exit_code, result.error)
    finally:
        if is_new and not any(path.exists() for path in runs.values()):
            remove(out / layout.SUMMARY)
            remove(out / layout.CONFIG)
        directory.close()


def _check_directory(
    directory: RunDirectory, experiment: ResolvedExperiment, count: int, *, resume: bool
) -> Mapping[str, str]:
    """Checks that a directory is new, or holds seeds of this experiment to resume; returns what has changed and may.

    Raises:
        RunDirectoryError: It is not.
    """
    out = directory.path
    seeds_before = layout.seeds_in(out)
    if not seeds_before:
        if directory.holds_run:
            raise RunDirectoryError(
                f"--out {out}: holds a single run; name another directory for --seeds"
            )
        return {}
    if not resume:
        raise RunDirectoryError(
            f"--out {out}: holds runs of several seeds already; continue them with --resume, or name another"
        )
    if count < seeds_before:
        raise RunDirectoryError(
            f"--resume: {out} holds {seeds_before} seeds; allowed: --seeds from {seeds_before}"
        )
    # A process that was killed before it wrote the file had trained nothing.
    if not directory.holds_run:
        return {}
    return check_same_experiment(experiment, stored_experiment(directory), directory)


def _summary(
    experiment: ResolvedExperiment, runs: Mapping[int, Path], *, name: str, stop_reason: str
) -> Mapping[str, Any]:
    """Returns all seeds' results so far, with estimates over the finished ones."""
    summaries = {seed: read_json_object(path / layout.SUMMARY) for seed, path in runs.items()}
    rows = [
        {
            "seed": seed,
            "directory": path.name,
            "is_begun": path.exists(),
            "is_finished": ended_by_itself(summaries[seed]),
            **{key: summaries[seed].get(key) for key in _COPIED},
            "spent_usd": spent_in(path).most_usd,
        }
        for seed, path in runs.items()
    ]
    found = estimates(rows)
    return {
        "experiment": name,
        "environment_id": experiment.environment.id,
        "stop_reason": stop_reason,
        "budget_usd": experiment.budget.usd,
        "spent_usd": sum(row["spent_usd"] for row in rows),
        "estimates": found.by_key,
        "confidence": CONFIDENCE,
        "resamples": RESAMPLES,
        "caution": found.caution or None,
        "seeds": rows,
    }
