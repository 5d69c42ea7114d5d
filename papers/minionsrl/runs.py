"""Reads finished runs, with the price of each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import ExperimentError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.experiment.schema import Experiment
from runtime.records import files, layout
from runtime.records.rows import RoundRow
from runtime.scaler.saved_scheduler import Priced, Pricing


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        experiment: Its settings.
        target_return: J.
        rows: Its rounds.
        priced: The price of each round, by its counts.
        stop_reason: The reason for its end.
    """

    experiment: Experiment
    target_return: float
    rows: Sequence[RoundRow]
    priced: Sequence[Priced]
    stop_reason: str

    @property
    def spent_usd(self) -> float:
        """Its dollars."""
        return sum(priced.usd for priced in self.priced)

    @property
    def seconds(self) -> float:
        """Its seconds."""
        return sum(priced.round_s for priced in self.priced)

    @property
    def is_success(self) -> bool:
        """Whether it reached its target, within its budget, which no run exceeds."""
        return self.stop_reason == "target_return"


def read_run(path: Path, pricing: Pricing) -> FinishedRun:
    """Reads a finished run's directory, and prices its rounds.

    Raises:
        RunDirectoryError: It holds no finished run, or one without ``stop.target_return``.
    """
    try:
        experiment = load_experiment(path / layout.CONFIG, is_of_run=True)
        rows = [RoundRow.from_json_line(line) for line in files.whole_lines(path / layout.ROUNDS)]
        stop_reason = files.read_json_object(path / layout.SUMMARY)["stop_reason"]
    except (OSError, ValueError, KeyError, TypeError, ExperimentError, RunDirectoryError) as error:
        raise RunDirectoryError(f"{path} holds no finished run: {error}") from None
    if stop_reason in ("interrupted", "failed"):
        raise RunDirectoryError(f"{path} holds no finished run: stop_reason = {stop_reason}")
    target_return = experiment.stop.target_return
    if target_return is None or not rows:
        raise RunDirectoryError(
            f"{path}: the run has no " + ("rounds" if not rows else "stop.target_return")
        )
    return FinishedRun(
        experiment, target_return, rows, [pricing.price(row) for row in rows], stop_reason
    )
