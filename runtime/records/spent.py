"""Computes a run's costs from its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.records import layout
from runtime.records.files import json_object, read_json_object, whole_lines
from runtime.records.rows import FIGURE_MAX


@dataclass(frozen=True)
class Spent:
    """A run's costs.

    Attributes:
        spent_usd: US dollars that are certainly spent.
        most_usd: US dollars that can have been spent at most, counting all reservations of the ledger.
    """

    spent_usd: float
    most_usd: float


def spent_by_records(
    *, ledger: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Spent | None:
    """Returns the largest costs in a run's records, because some may be older, damaged or missing.

    Args:
        ledger: Contents of `ledger.json`; empty if there is none.
        rows: Contents of `rounds.jsonl`.
        summary: Contents of `summary.json`; empty if there is none.

    Returns:
        None if no record has costs.
    """
    values = [record.get("spent_usd") for record in (summary, *rows)]
    spent = [
        value for value in values if isinstance(value, int | float) and 0 <= value < FIGURE_MAX
    ]
    most = list(spent)
    with suppress(KeyError, TypeError, AttributeError, ArithmeticError):
        budget = ledger["budget"]
        spent_usd = budget["spent"] / budget["units_per_usd"]
        most_usd = spent_usd + sum(budget["reserved"].values()) / budget["units_per_usd"]
        if 0 <= spent_usd <= most_usd < FIGURE_MAX:
            spent.append(spent_usd)
            most.append(most_usd)
    return Spent(max(spent), max(most)) if spent else None


def spent_in(path: Path) -> Spent:
    """Returns the costs of the run in the directory ``path``; zero if there is no run."""
    return spent_by_records(
        ledger=read_json_object(path / layout.LEDGER),
        rows=map(json_object, whole_lines(path / layout.ROUNDS)),
        summary=read_json_object(path / layout.SUMMARY),
    ) or Spent(0.0, 0.0)
