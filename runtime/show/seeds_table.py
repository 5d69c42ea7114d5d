"""The table of several seeds, shown when they end."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from runtime.records.rows import return_text
from runtime.show.end_text import file_lines
from runtime.show.estimates import ESTIMATED
from runtime.show.terminal import counted, spent_of


def table_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """Returns a table of all seeds and the estimates; up to 79 columns wide except for paths and errors."""
    lines = [
        f"{'seed':>10}  {'stopped by':<14} {'last eval':>10} {'best eval':>10} {'steps':>12} {'dollars':>9}"
    ]
    for row in summary["seeds"]:
        state = row["stop_reason"] or ("not finished" if row["is_begun"] else "not begun")
        last, best = (return_text(row[f"evaluation_return_{which}"]) for which in ("mean", "best"))
        steps = _text("env_steps_total", row["env_steps_total"])
        lines.append(
            f"{row['seed']:>10}  {state:<14} {last:>10} {best:>10} {steps:>12} {row['spent_usd']:>9.4f}"
        )
    lines += [
        f"{'':>10}  error of seed {row['seed']}: {row['error']}"
        for row in summary["seeds"]
        if row["error"]
    ]
    estimates = {
        key: estimate for key, estimate in summary["estimates"].items() if estimate["seeds"]
    }
    if estimates:
        # Of three values or fewer, it leaves nothing out.
        is_few = max(estimate["seeds"] for estimate in estimates.values()) < 4
        name = "mean" if is_few else "interquartile mean"
        lines += ["", f"{name} over seeds, {summary['confidence']:.0%} interval"]
    for key, estimate in estimates.items():
        mean, low, high = (
            _text(key, estimate[name])
            for name in ("interquartile_mean", "interval_low", "interval_high")
        )
        interval = "no interval" if estimate["interval_low"] is None else f"{low} … {high}"
        count = counted(estimate["seeds"], "seed")
        lines.append(f"  {ESTIMATED[key]:<16} {mean:>12}   {interval}   ({count})")
    lines += textwrap.wrap(
        summary["caution"] or "", 79, initial_indent="  ", subsequent_indent="  "
    )
    cost = spent_of(summary["spent_usd"], summary["budget_usd"])
    return [
        *lines,
        "",
        f"cost         {cost}",
        f"results      {out}",
        *file_lines(out, has_failed=False),
    ]


def _text(key: str, value: float | None) -> str:
    """Returns a value with the digits that suit its key."""
    digits = {"spent_usd": 4, "env_steps_total": 0}.get(key)
    return return_text(value) if digits is None or value is None else f"{value:,.{digits}f}"
