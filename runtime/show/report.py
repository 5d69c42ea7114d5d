"""Writes the report's page: one file that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from runtime.errors import RunError, one_line, without_credentials
from runtime.records import layout
from runtime.records.files import write_atomically
from runtime.records.rows import return_text
from runtime.show.charts import (
    INTERVAL,
    POINTS_MAX,
    basis_of,
    return_charts,
    round_charts,
)
from runtime.show.end_text import DOLLARS, UNFINISHED
from runtime.show.estimates import (
    CONFIDENCE,
    ESTIMATED,
    RESAMPLES,
    estimates,
)
from runtime.show.reading import (
    Number,
    RecordedGroup,
    RecordedRun,
    differences,
    read_groups,
)

_FILES = Path(__file__).parent
_EVENTS_SHOWN = 300
_DETAIL_CHARACTERS_MAX = 300
Columns = Mapping[str, tuple[Callable[[RecordedRun], Number | str | None], int | None]]
"""Each column's value for a run, and its decimals; None for a return."""


def _total(key: str) -> Callable[[RecordedRun], Number]:
    return lambda run: sum(run.column(key))


def _last(key: str) -> Callable[[RecordedRun], Number | None]:
    return lambda run: next(reversed(run.column(key)), None)


def _unfinished_usd(run: RecordedRun) -> float:
    return max(0.0, run.spent.spent_usd - sum(run.column("round_cost_usd")))


_ENDED: Columns = {
    "stopped by": (lambda run: run.stop_reason, 0),
    "last evaluation": (_last("evaluation_return_mean"), None),
    "best evaluation": (lambda run: max(run.column("evaluation_return_mean"), default=None), None),
    "training return": (_last("episode_return_mean"), None),
    "steps": (_last("env_steps_total"), 0),
    "rounds": (lambda run: len(run.rows), 0),
    "dollars": (lambda run: run.spent.spent_usd, 4),
    "minutes by the clock": (lambda run: sum(run.column("round_s")) / 60, 2),
    "actors": (lambda run: run.summary.get("actors"), 0),
    "failed": (lambda run: run.summary.get("actors_failed"), 0),
    "budget $": (lambda run: run.summary.get("budget_usd"), 4),
    "reserved $": (lambda run: run.spent.most_usd - run.spent.spent_usd, 4),
}
_DOLLARS: Columns = {
    **{name: (_total(key), 6) for key, name in DOLLARS.items()},
    UNFINISHED: (_unfinished_usd, 6),
    "in all": (lambda run: run.spent.spent_usd, 6),
}
_SECONDS: Columns = {
    "waiting for actors": (_total("collect_s"), 1),
    "updates": (_total("learn_s"), 1),
    "in all": (_total("round_s"), 1),
    "detector": (_total("detect_s"), 1),
    "evaluations (CPU)": (_total("evaluate_s"), 1),
}


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
    script = _text("uPlot-1.6.32.min.js") + _text("page.js")
    charts = [*return_charts(groups), *round_charts(groups)]
    sides = groups if len(groups) > 1 else [RecordedGroup(run.name, [run]) for run in runs]
    return environment.from_string(_text("page.html")).render(
        points_max=POINTS_MAX if any(len(run.rows) > POINTS_MAX for run in runs) else 0,
        title=" · ".join(group.name for group in groups),
        groups=groups,
        runs=runs,
        interval=INTERVAL,
        basis=basis_of(groups),
        charts=[chart | {"id": f"chart{number}"} for number, chart in enumerate(charts)],
        estimates=[_estimates(group) for group in groups if len(group.runs) > 1],
        resamples=RESAMPLES,
        confidence=CONFIDENCE,
        prices=_facts(runs, "prices_region", "prices_as_of"),
        about=_facts(runs, "experiment", "environment_id"),
        verdicts=[(group.name, _verdict(group)) for group in groups],
        tables={
            "ended": _table(runs, _ENDED),
            "dollars": _table(runs, _DOLLARS),
            "seconds": _table(runs, _SECONDS),
        },
        events={run: _events(run) for run in runs},
        sides=[side.name for side in sides],
        differences=differences(sides),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_text("uPlot-1.6.32.min.css") + _text("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def shown(value: Number | str | None, digits: int | None = 0) -> str:
    """Formats a number with these decimals (None: as a return); the element's value has all digits."""
    if value is None or isinstance(value, str):
        return value or "–"
    text = return_text(value) if digits is None else f"{value:,.{digits}f}"
    return Markup('<data value="{}">{}</data>').format(json.dumps(value), text)


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _table(runs: Sequence[RecordedRun], columns: Columns) -> list[tuple[RecordedRun, Any]]:
    """Returns each run with its cells, by the names of the columns."""
    return [
        (run, {name: shown(value(run), digits) for name, (value, digits) in columns.items()})
        for run in runs
    ]


def _estimates(group: RecordedGroup) -> Mapping[str, Any]:
    made = estimates(run.summary for run in group.runs)
    by_name = {ESTIMATED[key]: estimate for key, estimate in made.by_key.items()}
    return {"group": group, **made._asdict(), "by_name": by_name}


def _facts(runs: Sequence[RecordedRun], *keys: str) -> str:
    """Returns the summaries' values under these keys, each combination once."""
    facts = [", ".join(str(run.summary.get(key)) for key in keys) for run in runs if run.summary]
    return "; ".join(dict.fromkeys(facts))


def _verdict(group: RecordedGroup) -> str:
    """Tells whether the runs reached their target return."""
    targets = {run.settings.get("stop.target_return", "null") for run in group.runs} - {"null"}
    target = f"target return {' or '.join(sorted(targets))}" if targets else "no target return"
    if len(group.runs) == 1:
        return f"{target}; stopped by {group.runs[0].stop_reason}"
    reached = sum(run.stop_reason == "target_return" for run in group.runs)
    return (
        f"{target}; "
        + (f"reached by {reached} of " if targets else "")
        + f"{len(group.runs)} seeds"
    )


def _events(run: RecordedRun) -> Mapping[str, Any]:
    """Returns the count of each kind of event, and the last ones in full."""
    return {
        "counts": Counter(_kind(event) for event in run.events),
        "last": [
            (_time(event), _kind(event), _detail(event)) for event in run.events[-_EVENTS_SHOWN:]
        ],
        "left_out": max(0, len(run.events) - _EVENTS_SHOWN),
    }


def _kind(event: Mapping[str, Any]) -> str:
    return str(event.get("event")).replace("_", " ")


def _time(event: Mapping[str, Any]) -> str:
    """Returns date and time to the second, without the T between them."""
    return str(event.get("time", "")).partition(".")[0].replace("T", " ")


def _detail(event: Mapping[str, Any]) -> str:
    words = ", ".join(
        f"{key.replace('_', ' ')} {value}"
        for key, value in event.items()
        if key not in ("time", "event") and value not in (None, "")
    )
    return one_line(without_credentials(words), _DETAIL_CHARACTERS_MAX)
