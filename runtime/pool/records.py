"""What a pool finds in its directory, and why it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.errors import BudgetError, ExperimentError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.experiment.schema import (
    Experiment,
    changes,
    is_below,
    unchangeable,
)
from runtime.records import layout
from runtime.records.files import read_json_object
from runtime.records.run_directory import RunDirectory


def calls_in(directory: Path) -> int:
    """How many calls pools in a directory have begun, by its ledger."""
    calls = read_json_object(directory / layout.LEDGER).get("calls")
    return calls if isinstance(calls, int) else 0


def of_records(experiment: Experiment) -> dict[str, Any]:
    """What may not change from one pool in a directory to the next: it decides what trajectories are."""
    return {
        path: value
        for path, value in unchangeable(experiment).items()
        if is_below(path, ("environment", "seed"))
    }


def check_continues(experiment: Experiment, directory: RunDirectory) -> None:
    """Checks that a directory is an earlier pool's whose records can be continued.

    Raises:
        RunDirectoryError: It is not.
    """
    try:
        stored = load_experiment(directory.path / layout.CONFIG, is_of_run=True).resolved()
    except ExperimentError as error:
        raise RunDirectoryError(
            f"out = {directory.path}: {error}; allowed: another directory"
        ) from None
    problems = (
        changes(of_records(experiment), of_records(stored), "there")
        if stored.learner.is_external
        else ["it is a training's"]
    )
    if problems:
        raise RunDirectoryError(
            f"out = {directory.path}: {'; '.join(problems)}; allowed: another directory, or one of "
            "a pool of the same environment and seed"
        )


def stop_reason_of(error: BaseException | None, *, lacked_budget: bool) -> tuple[str, str]:
    """Why a pool ended, as its summary says it, and what it failed with."""
    if isinstance(error, BudgetError) or (
        lacked_budget and not isinstance(error, Exception | KeyboardInterrupt)
    ):
        return "budget", ""
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error}"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "closed", ""
