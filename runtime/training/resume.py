"""Resumes a run: checks its directory and its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.errors import CheckpointError, ExperimentError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import (
    CHANGEABLE,
    KIND,
    Experiment,
    changes,
    differing,
    equal_updaters,
    unchangeable,
)
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint
from runtime.records.files import read_json_object
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.opening import Run
from runtime.training.progress import Progress

if TYPE_CHECKING:
    from runtime.training.loop import RoundLoop


def stored_experiment(directory: RunDirectory) -> Experiment:
    """Returns the experiment of the run in the directory.

    Raises:
        RunDirectoryError: It cannot be read.
    """
    try:
        return load_experiment(directory.path / layout.CONFIG, is_of_run=True)
    except ExperimentError as error:
        raise RunDirectoryError(
            f"--resume: {error}\nIf another version of this program made the run, that version can "
            "continue it"
        ) from None


def check_same_experiment(
    experiment: Experiment, stored: Experiment, directory: RunDirectory
) -> dict[str, str]:
    """Checks that the run in the directory, with the ``stored`` experiment, belongs to this one.

    Returns:
        What has changed and may: the old and the new value by dotted path.

    Raises:
        RunDirectoryError: It belongs to another one.
    """
    now, before = unchangeable(experiment), unchangeable(stored.resolved())
    if now[KIND] != before[KIND]:
        now[KIND], before[KIND] = experiment.learner.kind, stored.learner.kind
    changed = changes(now, before, "in the run")
    if changed:
        raise RunDirectoryError(
            f"--resume: {directory.path} was another experiment: {'; '.join(changed)}. "
            f"Only {', '.join(CHANGEABLE)} may change, and learner.kind between "
            f"{' and '.join(equal_updaters())}"
        )
    changed_limits = differing(experiment.changeable, stored.changeable)
    return {path: f"{before} -> {now}" for path, (before, now) in changed_limits.items()}


def finished_summary(experiment: ResolvedExperiment, directory: Path) -> dict[str, Any] | None:
    """Returns the summary of a run with nothing left to do; None if it has work left, or if that is unknown."""
    stop = experiment.stop
    summary = read_json_object(directory / layout.SUMMARY)
    try:
        progress = Progress(
            stop, experiment.steps_together, env_steps_total=summary["env_steps_total"]
        )
        limit, value = {
            "target_return": (stop.target_return, summary["evaluation_return_mean"]),
            "max_rounds": (stop.max_rounds, summary["rounds"]),
            "max_steps": (0, -progress.room_for(1)),
            "budget": (experiment.budget.usd, summary["budget_usd"]),
        }[summary["stop_reason"]]
        return summary if value >= limit else None
    except (KeyError, TypeError):
        # It is missing, of another version, or by a reason that is no limit any more.
        return None


def continue_rounds(loop: RoundLoop, run: Run, rows: Sequence[RoundRow]) -> list[RoundRow]:
    """Restores the loop from the newest sound checkpoint, and removes the rows of later rounds.

    Args:
        loop: The loop.
        run: The run.
        rows: Those in its directory.

    Returns:
        The rows that remain.

    Raises:
        CheckpointError: No checkpoint can be used, or the newest is from another experiment.
        RunDirectoryError: The rows do not belong to the checkpoint's run.
    """
    directory = run.directory
    complete = next(
        (index for index, row in enumerate(rows) if row.round_index != index + 1), len(rows)
    )
    checkpoint: Checkpoint | None = load_newest_checkpoint(
        directory.path / layout.CHECKPOINTS,
        lambda stem, reason: run.events.append(
            "checkpoint_skipped", checkpoint=stem, reason=reason
        ),
        last_round=complete,
    )
    if checkpoint and checkpoint.values.get("experiment") != run.experiment.identity:
        raise CheckpointError(
            f"the checkpoint of round {checkpoint.round_index} in {directory.path} "
            "belongs to another experiment, or another version of this program wrote it: that "
            "version can continue it"
        )
    round_index = checkpoint.round_index if checkpoint is not None else 0
    if complete < len(rows) or (checkpoint is None and complete > 1):
        raise RunDirectoryError(
            f"{directory.path / layout.ROUNDS} begins with rounds 1 to {complete}, in order, and has {len(rows)} rows; "
            f"the newest usable checkpoint is of round {round_index}: something of this run was lost or mixed with "
            "another; nothing was changed; put the lost files back, or begin anew with another --out"
        )
    finished = list(rows[:round_index])
    if checkpoint is not None:
        loop.restore(checkpoint, finished)
    directory.keep_rounds(finished)
    return finished
