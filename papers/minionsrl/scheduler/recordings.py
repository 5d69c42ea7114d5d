"""Reads finished runs as recordings: their rows, and the limits that decided their end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from papers.pricing import pricing_of
from runtime.errors import ExperimentError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.records import files, layout
from runtime.records.rows import RoundRow
from runtime.scaler.saved_scheduler import Priced, Pricing, Seen, return_share

BOUNDS: Final = ("actors_min", "actors_max")
_BROKEN_OFF: Final = ("interrupted", "failed")


class _BrokenOffError(RunDirectoryError):
    pass


@dataclass(frozen=True)
class Recording:
    """A finished run.

    Attributes:
        rows: Its rounds.
        priced: The price of each.
        pricing: Their seconds and prices.
        workload: The settings that runs of one surrogate must share.
        stop_reason: The reason for its end.
    """

    rows: Sequence[RoundRow]
    priced: Sequence[Priced]
    pricing: Pricing
    workload: dict[str, Any]
    stop_reason: str

    @property
    def spent_usd(self) -> float:
        """Its dollars, priced by counts."""
        return sum(one.usd for one in self.priced)

    @property
    def seconds(self) -> float:
        """Its seconds, priced by counts."""
        return sum(one.round_s for one in self.priced)

    @property
    def is_success(self) -> bool:
        """Whether it reached its target, within its budget, which no run exceeds."""
        return self.stop_reason == "target_return"

    @property
    def target_return(self) -> float:
        """J."""
        return float(self.workload["target_return"])

    @property
    def budget_usd(self) -> float:
        """B."""
        return float(self.workload["budget_usd"])

    @property
    def shares(self) -> list[float]:
        """R̄/J of each round, from the last round with a return; 0 before the first."""
        found, seen = [], Seen()
        for row, priced in zip(self.rows, self.priced, strict=True):
            seen = seen.after(row, priced)
            found.append(
                0.0
                if seen.return_mean is None
                else return_share(seen.return_mean, self.target_return)
            )
        return found


def read_recording(path: Path, pricing: Pricing | None = None) -> Recording:
    """Reads a finished run's directory, and prices its rounds; None = at the table's seconds for its workload.

    Raises:
        RunDirectoryError: It holds no finished run, or one without ``stop.target_return``.
    """
    try:
        experiment = load_experiment(path / layout.CONFIG, is_of_run=True)
        rows = [RoundRow.from_json_line(line) for line in files.whole_lines(path / layout.ROUNDS)]
        summary = files.read_json_object(path / layout.SUMMARY)
        stop_reason = summary["stop_reason"]
        pricing = pricing or pricing_of(experiment)
    except (OSError, ValueError, KeyError, TypeError, ExperimentError, RunDirectoryError) as error:
        raise RunDirectoryError(f"{path} holds no finished run: {error}") from None
    if stop_reason in _BROKEN_OFF:
        raise _BrokenOffError(f"{path} holds no finished run: stop_reason = {stop_reason}")
    if experiment.stop.target_return is None or not rows:
        raise RunDirectoryError(
            f"{path}: the run has no " + ("rounds" if not rows else "stop.target_return")
        )
    return Recording(
        rows,
        [pricing.price(row) for row in rows],
        pricing,
        {
            "environment_id": experiment.environment.id,
            "target_return": experiment.stop.target_return,
            "budget_usd": experiment.budget.usd,
            "max_steps": experiment.stop.max_steps,
            "max_rounds": experiment.stop.max_rounds,
            "fragment_steps": experiment.actor.fragment_steps,
            "actors_min": experiment.scaler.actors_min,
            "actors_max": experiment.scaler.actors_max,
        },
        stop_reason,
    )


def read_recordings(directories: Sequence[Path]) -> list[Recording]:
    """Reads all finished runs below some directories, which may differ only in ``actors_min`` and ``actors_max``.

    Raises:
        RunDirectoryError: There are none, or they have different workloads.
    """
    found: list[Recording] = []
    names = ", ".join(map(str, directories))
    for directory in directories:
        for path in sorted(directory.glob("*/summary.json")):
            with contextlib.suppress(_BrokenOffError):
                found.append(read_recording(path.parent))
    if not found:
        raise RunDirectoryError(
            f"{names}: holds no finished run; `python -m papers.minionsrl record` makes some"
        )
    for one in found[1:]:
        if different := [
            key
            for key, value in one.workload.items()
            if value != found[0].workload[key] and key not in BOUNDS
        ]:
            raise RunDirectoryError(
                f"{names}: its runs differ in {', '.join(different)}; a surrogate is of one "
                "workload"
            )
    return found
