"""Writes the report's page: one file that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from runtime.errors import RunError, one_line, without_credentials
from runtime.records import layout
from runtime.records.estimates import CONFIDENCE, ESTIMATED, RESAMPLES, caution, interval_estimate
from runtime.records.files import write_atomically
from runtime.records.rows import RoundRow, return_text
from runtime.report.charts import (
    DOLLARS,
    INTERVAL,
    POINTS_MAX,
    UNFINISHED,
    PartsOf,
    are_apart,
    basis_of,
    measured_parts,
    modelled_parts,
    part_charts,
    return_charts,
    round_charts,
    thinned,
)
from runtime.report.reading import (
    Number,
    RecordedGroup,
    RecordedRun,
    differences,
    read_groups,
    separated,
)

_FILES = Path(__file__).parent
_EVENTS_SHOWN = 300
_DETAIL_CHARACTERS_MAX = 300
_BESIDE = {"detect_s": "detector, meanwhile", "evaluate_s": "evaluations, meanwhile (CPU)"}


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Writes the page about the runs and directories of seeds in ``paths``.

    Raises:
        RunDirectoryError: One of the paths does not exist.
        RunError: ``out`` cannot be written.
    """
    page = report_page(read_groups(paths)).encode(errors="replace")
    try:
        write_atomically(out, page)
    except OSError as error:
        raise RunError(f"--out {out}: cannot be written: {error.strerror or error}") from None


def try_to_write_report(directory: Path) -> str:
    """Writes `report.html` into the directory of finished runs or seeds, whatever it contains.

    Returns:
        Why it could not be written; empty if it was. A failed report never makes a finished run fail.
    """
    try:
        write_report([directory], directory / layout.REPORT)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def report_page(groups: Sequence[RecordedGroup]) -> str:
    """Returns the page as HTML; all text from the records is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False}
    environment.filters["shown"] = shown
    runs = [run for group in groups for run in group.runs]
    basis = basis_of(groups)
    script = _text("uPlot-1.6.32.min.js") + _text("page.js")
    charts = [
        *return_charts(groups),
        *round_charts(groups),
        *(part_charts(runs[0]) if len(runs) == 1 else ()),
    ]
    charts = [
        chart
        | {"id": f"chart{place}", "series": [thinned(one) for one in chart["series"] if one["x"]]}
        for place, chart in enumerate(charts)
    ]
    return environment.from_string(_text("page.html")).render(
        points_max=POINTS_MAX if any(len(run.rows) > POINTS_MAX for run in runs) else 0,
        title=" · ".join(group.name for group in groups),
        groups=groups,
        runs=runs,
        interval=INTERVAL,
        basis=basis,
        are_apart=are_apart(groups),
        charts=charts,
        estimates=[_estimates(group) for group in groups if len(group.runs) > 1],
        resamples=RESAMPLES,
        confidence=CONFIDENCE,
        prices=_told(runs, "prices_region", "prices_as_of"),
        about=_told(runs, "experiment", "environment_id"),
        verdicts=[(group.name, _verdict(group)) for group in groups],
        headline=_headline(runs[0]) if len(runs) == 1 else (),
        tables={
            "ended": _ended(runs, basis),
            "dollars": _dollars(runs),
            "measured": _seconds(runs, measured_parts, _BESIDE),
            "modelled": _seconds(runs, modelled_parts, {}),
        },
        events={run: _events(run) for run in runs},
        differences=_differences(groups),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_text("uPlot-1.6.32.min.css") + _text("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def shown(value: Number | None, digits: int | None = 0) -> Markup:
    """Formats a number with these decimals (None: as a return); the element's value has all digits."""
    if value is None:
        return Markup("–")
    return Markup('<data value="{}">{}</data>').format(
        json.dumps(value), return_text(value) if digits is None else f"{value:,.{digits}f}"
    )


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _estimates(group: RecordedGroup) -> Mapping[str, Any]:
    finished = [run for run in group.runs if run.is_finished]
    found = {
        label: interval_estimate(
            [value for run in finished if (value := run.value(key)) is not None]
        )
        for key, label in ESTIMATED.items()
    }
    return {
        "group": group,
        "finished": len(finished),
        "found": found,
        "caution": caution(len(finished)),
    }


def _told(runs: Sequence[RecordedRun], *keys: str) -> str:
    """Returns the summaries' values under these keys, each combination once."""
    told = [
        ", ".join(str(run.summary[key]) for key in keys)
        for run in runs
        if set(keys) <= run.summary.keys()
    ]
    return "; ".join(dict.fromkeys(told))


def _verdict(group: RecordedGroup) -> str:
    """Whether the runs reached their target return."""
    reasons = [str(run.summary.get("stop_reason") or "") for run in group.runs]
    targets = {run.settings.get("stop.target_return", "null") for run in group.runs}
    target = (
        str(targets.pop()).removesuffix(".0") if len(targets) == 1 else "different for each run"
    )
    if len(reasons) > 1:
        return (
            f"{len(reasons)} seeds, no target return was set"
            if target == "null"
            else f"{reasons.count('target_return')} of {len(reasons)} seeds reached the target return ({target})"
        )
    ended = f"stopped by {reasons[0]}" if reasons and reasons[0] else "has not ended"
    if target == "null":
        return f"{ended}, no target return was set"
    return (
        f"reached its target return of {target}"
        if "target_return" in reasons
        else f"{ended}, target return of {target} not reached"
    )


def _headline(run: RecordedRun) -> Sequence[tuple[str, str, str]]:
    """A run's most important numbers, each with what it is and a note."""
    best, last = (shown(run.value(f"evaluation_return_{key}"), None) for key in ("best", "mean"))
    steps, rounds = shown(run.value("env_steps_total")), shown(run.value("rounds"))
    return [
        ("best evaluation", best, Markup("last {}").format(last)),
        ("environment steps", steps, Markup("in {} rounds").format(rounds)),
        (
            f"dollars, {run.basis}",
            shown(run.spent_usd[0], 4),
            Markup("of {}").format(shown(run.value("budget_usd"), 2)),
        ),
        ("seconds by the clock", shown(run.total("round_s")), "in finished rounds"),
    ]


Table = tuple[Sequence[str], Sequence[tuple[RecordedRun, Sequence[str]]]]
"""Names of columns, and each run's cells."""


def _ended(runs: Sequence[RecordedRun], basis: str) -> Table:
    """Shows how each run ended, from its `summary.json`."""
    dropped = (
        {"episodes_dropped": ("dropped episodes", 0), "steps_dropped": ("dropped steps", 0)}
        if any(run.value("episodes_dropped") for run in runs)
        else {}
    )
    keys = {
        "evaluation_return_mean": ("last evaluation", None),
        "evaluation_return_best": ("best evaluation", None),
        "episode_return_mean": ("in training", None),
        "env_steps_total": ("steps", 0),
        "rounds": ("rounds", 0),
        "actors": ("actors", 0),
        "actors_failed": ("failed", 0),
        **dropped,
        "budget_usd": ("budget $", 4),
        "measured_session_s": ("last session s", 0),
        "modelled_s": (f"{basis} s", 0),
    }
    rows = []
    for run in runs:
        spent_usd, reserved_usd = run.spent_usd
        spent = shown(spent_usd, 4) + (
            Markup(" + {} reserved").format(shown(reserved_usd, 4)) if reserved_usd else ""
        )
        rows.append(
            (
                run,
                [
                    str(run.summary.get("stop_reason") or "not ended"),
                    spent,
                    *(shown(run.value(key), digits) for key, (_, digits) in keys.items()),
                ],
            )
        )
    return ["stopped by", f"$ {basis}", *(name for name, _ in keys.values())], rows


def _dollars(runs: Sequence[RecordedRun]) -> Table:
    """Shows each run's bill, whose parts add up to the total."""
    rows = []
    for run in runs:
        parts = [run.total(key) for key in DOLLARS]
        unfinished = max(
            0.0, run.spent_usd[0] - sum(row["round_cost_usd"] or 0.0 for row in run.rows)
        )
        rows.append((run, [shown(value, 6) for value in (*parts, unfinished, run.spent_usd[0])]))
    return [*DOLLARS.values(), UNFINISHED, "in all"], rows


def _seconds(runs: Sequence[RecordedRun], parts_of: PartsOf, beside: Mapping[str, str]) -> Table:
    """Shows each run's seconds, whose parts add up; columns of parallel work come last."""
    heads, rows = list(parts_of(dict.fromkeys(RoundRow.columns()))), []
    for run in runs:
        found = [parts_of(row) for row in run.rows]
        known = [[value for one in found if (value := one[name]) is not None] for name in heads]
        sums = [sum(values) if values else None for values in known]
        whole = sum(value or 0.0 for value in sums) if run.rows else None
        rows.append((run, [shown(value, 1) for value in (*sums, whole, *map(run.total, beside))]))
    return [*heads, "in all", *beside.values()], rows


def _events(run: RecordedRun) -> Mapping[str, Any]:
    """Shows the count of each kind of event, and the last ones in full."""
    kinds: dict[str, list[str]] = {}
    for event in run.events:
        kinds.setdefault(event["event"].replace("_", " "), []).append(_moment(event))
    counts = [(kind, len(moments), moments[0], moments[-1]) for kind, moments in kinds.items()]
    started = [row for row in run.rows if row["actor_count"] is not None]
    fewest = min((row["actor_count"] or 0 for row in started), default=0)
    boosted = [row["round_index"] for row in started if (row["actor_count"] or 0) > fewest]
    if boosted and run.settings.get("scaler.kind") == "nitro":
        counts.append(
            (
                f"boosts: rounds with more than {fewest} actors",
                len(boosted),
                f"round {boosted[0]}",
                f"round {boosted[-1]}",
            )
        )
    return {
        "counts": counts,
        "last": [
            (_moment(event), event["event"].replace("_", " "), _detail(event))
            for event in run.events[-_EVENTS_SHOWN:]
        ],
        "left_out": max(0, len(run.events) - _EVENTS_SHOWN),
    }


def _moment(event: Mapping[str, Any]) -> str:
    return str(event.get("time", "")).partition(".")[0].replace("T", " ")[:40]


def _detail(event: Mapping[str, Any]) -> str:
    words = ", ".join(
        f"{key.replace('_', ' ')} {value}"
        for key, value in event.items()
        if key not in ("time", "event") and value not in (None, "")
    )
    return one_line(without_credentials(words), _DETAIL_CHARACTERS_MAX)


def _differences(
    groups: Sequence[RecordedGroup],
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]] | None:
    """Shows settings that differ between groups or, for a single group, between its runs."""
    sides = separated(groups)
    different = differences(sides)
    return ([side.name for side in sides], different) if different else None
