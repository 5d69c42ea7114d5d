"""Computes a run's costs from its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.records.files import json_object
from runtime.records.layout import RunFiles


@dataclass(frozen=True)
class Spent:
    """A run's costs, and its reservations when its ledger was last written.

    Attributes:
        spent_usd: US dollars that are certainly spent.
        reserved_usd: US dollars that it may additionally spend or, if it was killed, may have spent.
    """

    spent_usd: float
    reserved_usd: float = 0.0

    @property
    def most_usd(self) -> float:
        """Returns the most that can have been spent, counting all reservations."""
        return self.spent_usd + self.reserved_usd


def spent_by_records(
    *, ledger: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Spent | None:
    """Returns the largest costs in a run's records, because some may be older, damaged or missing.

    Args:
        ledger: Contents of `ledger.json`; empty if there is none.
        rows: Contents of `rounds.jsonl`.
        summary: Contents of `summary.json`; empty if there is none.

    Returns:
        None if no record has costs.
    """
    found = [Spent(one["spent_usd"]) for one in (summary, *rows[-1:]) if "spent_usd" in one]
    if "budget" in ledger:
        budget, units = ledger["budget"], ledger["budget"]["units_per_usd"]
        reserved = sum(budget["reserved"].values())
        found.append(Spent(budget["spent"] / units, reserved / units))
    return max(found, key=lambda spent: spent.most_usd, default=None)


def spent_in(path: Path) -> Spent:
    """Returns the costs of the run in the directory ``path``; zero if there is no run."""
    files = RunFiles(path)
    rows = [row for row in map(json_object, _read(files.rounds_path).splitlines()) if row]
    found = spent_by_records(
        ledger=json_object(_read(files.ledger_path)),
        rows=rows,
        summary=json_object(_read(files.summary_path)),
    )
    return found or Spent(0.0)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
