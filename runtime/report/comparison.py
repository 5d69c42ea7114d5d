"""Compares runs as text: different settings, and results."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from runtime.records.estimates import CONFIDENCE, interval_estimate
from runtime.records.rows import return_text
from runtime.report.charts import basis_of, modelled_parts
from runtime.report.reading import Number, RecordedGroup, RecordedRun, differences, separated

_CELL_COLUMNS_MAX = 26
_GAP = "  "
_RETURNS = ("last evaluation", "best evaluation", "training return")
Line = tuple[str, Sequence[str]]


def comparison_lines(groups: Sequence[RecordedGroup], columns: int) -> list[str]:
    """Returns a table with a column for each group, or for a single group each of its runs and all together.

    Args:
        groups: At least one, each with a finished round.
        columns: Width of the terminal; further columns go below.
    """
    sides = separated(groups)
    different = list(differences(sides).items())
    if len(groups) == 1 and len(sides) > 1:
        sides = [*sides, RecordedGroup(f"all {len(sides)}", groups[0].runs)]
        different = [(key, [*found, ""]) for key, found in different]
    basis = basis_of(groups)
    values = [_values(side) for side in sides]
    results = [
        (
            f"{name}, {basis}" if name in ("dollars", "minutes of the bill") else name,
            [found[name] for found in values],
        )
        for name in values[0]
    ]
    lines = _table([side.name for side in sides], [*different, ("", []), *results], columns)
    if not different and len(sides) > 1:
        lines = ["no setting differs", "", *lines]
    if any(len(side.runs) > 1 for side in sides):
        lines += [
            "",
            f"Over seeds: interquartile mean of those that have finished, with a {CONFIDENCE:.0%} percentile",
            "interval by bootstrap below it.",
        ]
    return lines


def _values(group: RecordedGroup) -> dict[str, str]:
    """Returns the values of a group's column below its settings."""
    finished = [run for run in group.runs if run.is_finished]
    reasons = Counter(_reason(run) for run in group.runs)
    is_alone = len(group.runs) == 1
    found = {
        "seeds finished": "" if is_alone else f"{len(finished)} of {len(group.runs)}",
        "stopped by": ", ".join(
            reason if is_alone else f"{times} {reason}" for reason, times in reasons.items()
        ),
    }
    results = [_results(run) for run in (group.runs if is_alone else finished)]
    for name in _results(group.runs[0]):
        known = [value for one in results if (value := one[name]) is not None]
        found[name] = (
            _number(known[0] if known else None, name) if is_alone else _estimated(known, name)
        )
    return found


def _reason(run: RecordedRun) -> str:
    return str(run.summary.get("stop_reason") or "not ended")


def _results(run: RecordedRun) -> dict[str, Number | None]:
    """From the rows, so that unfinished runs also have them."""

    def of(key: str) -> list[Number]:
        return [value for row in run.rows if (value := row[key]) is not None]

    evaluations, billed = of("evaluation_return_mean"), [modelled_parts(row) for row in run.rows]
    billed_s = [value for one in billed for value in one.values() if value is not None]
    return {
        "last evaluation": evaluations[-1] if evaluations else None,
        "best evaluation": max(evaluations, default=None),
        "training return": next(iter(reversed(of("episode_return_mean"))), None),
        "steps": next(iter(reversed(of("env_steps_total"))), None),
        "rounds": len(run.rows),
        "dollars": run.spent_usd[0] if run.rows else None,
        "minutes by the clock": _minutes(of("round_s")),
        "minutes of the bill": _minutes(billed_s),
    }


def _minutes(seconds: Sequence[Number]) -> float | None:
    return sum(seconds) / 60 if seconds else None


def _estimated(values: Sequence[Number], name: str) -> str:
    """Returns the estimate over seeds, with its interval below."""
    one = interval_estimate(values)
    low, high = one["interval_low"], one["interval_high"]
    interval = "" if low is None else f"\n{_number(low, name)} … {_number(high, name)}"
    return _number(one["interquartile_mean"], name) + interval


def _number(value: Number | None, name: str) -> str:
    if name in _RETURNS:
        return return_text(value)
    digits = 4 if name == "dollars" else 2 if name.startswith("minutes") else 0
    return "–" if value is None else f"{value:,.{digits}f}"


def _table(names: Sequence[str], rows: Sequence[Line], columns: int) -> list[str]:
    """Lays out a table whose first column has labels; columns that do not fit go below, with labels again."""
    labels = ["", *(label for label, _ in rows)]
    texts = zip(names, *(found or [""] * len(names) for _, found in rows), strict=True)
    cells = [list(map(_folded, column)) for column in texts]
    widths = [max(len(part) for cell in column for part in cell) for column in cells]
    margin = max(map(len, labels))
    lines: list[str] = []
    first = 0
    while first < len(names):
        end = first + 1
        while (
            end < len(names)
            and margin + sum(len(_GAP) + width for width in widths[first : end + 1]) <= columns
        ):
            end += 1
        lines += [""] if lines else []
        for label, *shown in zip(labels, *cells[first:end], strict=True):
            if label and not any(map(any, shown)):
                continue
            for parts in zip_longest([label], *shown, fillvalue=""):
                lines.append(
                    _GAP.join(
                        [parts[0].ljust(margin), *map(str.rjust, parts[1:], widths[first:end])]
                    )
                )
        first = end
    return [line.rstrip() for line in lines]


def _folded(text: str) -> list[str]:
    return [
        part for line in text.split("\n") for part in textwrap.wrap(line, _CELL_COLUMNS_MAX) or [""]
    ]
