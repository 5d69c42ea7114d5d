"""Compares runs as text: different settings, and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from runtime.records.estimates import CONFIDENCE, interval_estimate
from runtime.records.rows import return_text
from runtime.show.charts import basis_of
from runtime.show.reading import (
    Number,
    RecordedGroup,
    RecordedRun,
    differences,
    separated,
)

Result = Callable[[RecordedRun], Number | None]
RESULTS: dict[str, tuple[Result, int | None]] = {
    "last evaluation": (lambda run: _last(run.column("evaluation_return_mean")), None),
    "best evaluation": (lambda run: max(run.column("evaluation_return_mean"), default=None), None),
    "training return": (lambda run: _last(run.column("episode_return_mean")), None),
    "steps": (lambda run: _last(run.column("env_steps_total")), 0),
    "rounds": (lambda run: len(run.rows), 0),
    "dollars": (lambda run: run.spent.spent_usd, 4),
    "minutes by the clock": (lambda run: sum(run.column("round_s")) / 60, 2),
}
"""A run's results, from its rows, so that unfinished runs have them too; with decimals, or None for a return."""


def _last(values: Sequence[Number]) -> Number | None:
    return values[-1] if values else None


def comparison_lines(groups: Sequence[RecordedGroup], columns: int) -> list[str]:
    """Returns a table with a column for each group, or for a single group each of its runs and all together.

    Args:
        groups: At least one, each with a finished round.
        columns: Width of the terminal; cells that do not fit are folded.
    """
    sides = separated(groups)
    different = differences(sides)
    if len(groups) == 1 and len(sides) > 1:
        sides = [*sides, RecordedGroup(f"all {len(sides)}", groups[0].runs)]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for side in sides:
        table.add_column(side.name, justify="right", overflow="fold")
    for key, values in different.items():
        table.add_row(key, *values)
    table.add_section()
    results = [_results(side) for side in sides]
    for name in results[0]:
        table.add_row(name, *(found[name] for found in results))
    console = Console(width=columns, color_system=None, markup=False)
    with console.capture() as text:
        console.print(table)
    lines = [line.rstrip() for line in text.get().splitlines()]
    lines.append(f"Dollars: {basis_of(groups)}.")
    if not different and len(sides) > 1:
        lines.append("No setting differs.")
    if any(len(side.runs) > 1 for side in sides):
        lines.append(
            f"Over seeds: interquartile mean of those that have finished, with a {CONFIDENCE:.0%} "
            "percentile interval by bootstrap below it."
        )
    return lines


def _results(group: RecordedGroup) -> dict[str, str]:
    """Returns the values of a group's column below its settings."""
    reasons = Counter(run.stop_reason for run in group.runs)
    runs = group.runs if len(group.runs) == 1 else [run for run in group.runs if run.is_finished]
    found = {
        "seeds finished": f"{sum(run.is_finished for run in runs)} of {len(group.runs)}",
        "stopped by": ", ".join(reasons),
    }
    for name, (result, digits) in RESULTS.items():
        values = [value for run in runs if (value := result(run)) is not None]
        one = interval_estimate(values)
        found[name] = _number(one["interquartile_mean"], digits)
        if len(values) > 1:
            low, high = (_number(one[key], digits) for key in ("interval_low", "interval_high"))
            found[name] += f"\n{low} … {high}"
    return found


def _number(value: Number | None, digits: int | None) -> str:
    if value is None or digits is None:
        return return_text(value)
    return f"{value:,.{digits}f}"
