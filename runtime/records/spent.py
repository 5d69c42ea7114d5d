"""Computes a run's costs from its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.records.files import json_object
from runtime.records.layout import RunFiles

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ZeroDivisionError,
    OverflowError,
)
_USD_MAX = 1e12


@dataclass(frozen=True)
class Spent:
    """A run's costs, and its reservations when its ledger was last written.

    Attributes:
        spent_usd: US dollars that are certainly spent.
        reserved_usd: US dollars that it may additionally spend or, if it was killed, may have spent.

    Raises:
        ValueError: An amount is negative, not finite, or more than any run can spend.
    """

    spent_usd: float
    reserved_usd: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.spent_usd <= _USD_MAX and 0.0 <= self.reserved_usd <= _USD_MAX):
            raise ValueError(f"{self} is no amount")

    @property
    def most_usd(self) -> float:
        """Returns the most that can have been spent, counting all reservations."""
        return self.spent_usd + self.reserved_usd


def spent_by_ledger(ledger: Mapping[str, Any]) -> Spent:
    """Reads `ledger.json`.

    Raises:
        ValueError: Its amounts are not whole numbers from 0, or more than any run can spend.
        KeyError, TypeError, ZeroDivisionError, OverflowError: It is not a ledger.
    """
    budget = ledger["budget"]
    units, spent, reserved = (
        budget["units_per_usd"],
        budget["spent"],
        list(budget["reserved"].values()),
    )
    for amount in (units, spent, *reserved):
        if type(amount) is not int or amount < 0:
            raise ValueError(f"{amount!r} is no amount")
    return Spent(spent / units, sum(reserved) / units)


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
    readers: tuple[Callable[[], Spent], ...] = (
        lambda: spent_by_ledger(ledger),
        # Left next to a damaged ledger.
        lambda: Spent(float(summary["spent_usd"])),
        lambda: Spent(float(rows[-1]["spent_usd"])),
    )
    found: list[Spent] = []
    for read in readers:
        with suppress(IndexError, *_UNREADABLE):
            found.append(read())
    return max(found, key=lambda spent: spent.most_usd, default=None)


def spent_in(path: Path) -> Spent:
    """Returns the costs of the run in the directory ``path``; zero if there is no run."""
    files = RunFiles(path)
    last_rows: list[Mapping[str, Any]] = []
    with suppress(IndexError, *_UNREADABLE):
        lines = files.rounds_path.read_bytes().splitlines(keepends=True)
        last_rows = [json_object([line for line in lines if line.endswith(b"\n")][-1])]
    found = spent_by_records(
        ledger=_read(files.ledger_path), rows=last_rows, summary=_read(files.summary_path)
    )
    return found or Spent(0.0)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}
