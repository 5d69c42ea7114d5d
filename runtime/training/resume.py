"""Resumes a run: checks its directory and its checkpoint, and counts its spending."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.errors import CheckpointError, ExperimentError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.experiment.schema import (
    CHANGEABLE,
    KIND,
    Experiment,
    changes,
    equal_updaters,
    unchangeable,
)
from runtime.money.work import CostMeter
from runtime.records import layout
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint
from runtime.records.observers import EventSink
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.progress import Progress
from runtime.training.summary import Summary, read_summary

if TYPE_CHECKING:
    from runtime.training.loop import RoundLoop


STANDING_USD_MIN = 5e-5
"""Smaller idle costs are billed without an event, since they are shown as 0.0000."""


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
) -> None:
    """Checks that the run in the directory, with the ``stored`` experiment, belongs to this one.

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


def finished_summary(experiment: Experiment, directory: RunDirectory) -> Summary | None:
    """Returns the summary of a run with nothing left to do; None if it has work left, or if that is unknown."""
    stop = experiment.stop

    def is_reached(limit: float | None, value: float | None) -> bool:
        return limit is not None and value is not None and value >= limit

    summary = read_summary(directory.path / layout.SUMMARY)
    if summary is None:
        return None
    progress = Progress(
        stop, experiment.actor.fragment_steps, env_steps_total=summary["env_steps_total"]
    )
    reached = {
        "target_return": is_reached(stop.target_return, summary["evaluation_return_mean"]),
        "max_rounds": is_reached(stop.max_rounds, summary["rounds"]),
        "max_steps": progress.room_for(1) == 0,
        "budget": is_reached(experiment.budget.usd, summary["budget_usd"]),
    }
    return summary if reached.get(summary["stop_reason"]) else None


def continue_rounds(
    loop: RoundLoop,
    directory: RunDirectory,
    identity: Any,
    events: EventSink,
) -> Sequence[RoundRow]:
    """Restores the loop from the newest sound checkpoint whose rows are on disk, and removes the rows of later rounds.

    Args:
        loop: New.
        directory: The run's.
        identity: The experiment's identity in its checkpoints.
        events: Records checkpoints that cannot be used.

    Returns:
        The rows of the finished rounds.

    Raises:
        CheckpointError: No checkpoint can be used, or the newest is from another experiment.
        RunDirectoryError: The rows do not belong to the checkpoint's run.
    """
    rows = directory.read_rounds()
    complete = next(
        (place for place, row in enumerate(rows) if row.round_index != place + 1), len(rows)
    )
    checkpoint: Checkpoint | None = load_newest_checkpoint(
        directory.path / layout.CHECKPOINTS,
        lambda stem, reason: events.append("checkpoint_skipped", checkpoint=stem, reason=reason),
        last_round=complete,
    )
    if checkpoint is not None and checkpoint.values.get("experiment") != identity:
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
    finished = rows[:round_index]
    if checkpoint is not None:
        loop.restore(checkpoint, finished)
    directory.keep_rounds(finished)
    return finished


def count_what_was_spent(
    meter: CostMeter,
    ledger_path: Path,
    events: EventSink,
    *,
    elsewhere_usd: float,
    save_ledger: Callable[[], None],
) -> None:
    """Counts spending since the checkpoint; reservations of the killed run count as spent.

    Args:
        meter: The checkpoint's.
        ledger_path: The run's ledger, which is newer, if there is one.
        events: Records the counted amounts.
        elsewhere_usd: Lowest possible cost of the run, by records elsewhere.
        save_ledger: Puts the meter's state on disk.
    """
    if ledger_path.exists():
        _take_ledger(meter, ledger_path, events)
    unknown_usd = elsewhere_usd - meter.spent_usd - meter.reserved_usd
    if unknown_usd > 0.0:
        meter.add_spent(unknown_usd)
        events.append(
            "spent_elsewhere",
            usd=unknown_usd,
            reason="what the ledger knows that the run's directory does not: a teardown, say",
        )
    spent_usd = meter.spent_usd
    forfeited_usd = meter.forfeit()
    standing_usd = meter.spent_usd - spent_usd - forfeited_usd
    if standing_usd >= STANDING_USD_MIN:
        events.append(
            "standing_billed",
            usd=standing_usd,
            reason="what the deployment cost since it began, or since its last round",
        )
    if forfeited_usd:
        events.append(
            "reservation_forfeited",
            usd=forfeited_usd,
            reason="the run was killed while it was reserved",
        )
    save_ledger()


def _take_ledger(meter: CostMeter, path: Path, events: EventSink) -> None:
    """Takes the ledger, which is newer than the checkpoint, unless it shows less spending."""
    known, spent_usd = meter.get_state(), meter.spent_usd
    promised_usd = spent_usd + meter.reserved_usd
    try:
        meter.set_state(json.loads(path.read_bytes()))
        # An older one may still promise enough, because actors continue from one round to the next.
        if meter.spent_usd + meter.reserved_usd < promised_usd and meter.spent_usd < spent_usd:
            raise ValueError("less is spent in it than in the checkpoint")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        meter.set_state(known)
        events.append("ledger_unreadable", error=f"{type(error).__name__}: {error}")
