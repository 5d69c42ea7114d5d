"""Writes the report's page: one file that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from runtime.errors import RunError, one_line, without_credentials
from runtime.records import layout
from runtime.records.files import write_atomically
from runtime.records.rows import return_text
from runtime.show.charts import INTERVAL, POINTS_MAX, basis_of, return_charts, round_charts
from runtime.show.end_text import DOLLARS, UNFINISHED
from runtime.show.estimates import CONFIDENCE, ESTIMATED, RESAMPLES, estimates
from runtime.show.reading import Number, RecordedGroup, RecordedRun, differences, read_groups

_FILES = Path(__file__).parent
_DETAIL_CHARACTERS_MAX = 300
_SECONDS = {
    "waiting for actors": "collect_s",
    "updates": "learn_s",
    "in all": "round_s",
    "detector": "detect_s",
    "evaluations (CPU)": "evaluate_s",
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
    environment.filters |= {"shown": _shown, "detail": _detail}
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
        estimates=[
            (group, estimates(run.summary for run in group.runs))
            for group in groups
            if len(group.runs) > 1
        ],
        estimated=ESTIMATED,
        resamples=RESAMPLES,
        confidence=CONFIDENCE,
        prices=_facts(runs, "prices_region", "prices_as_of"),
        about=_facts(runs, "experiment", "environment_id"),
        endings=[
            (group.name, Counter(run.state for run in group.runs).most_common()) for group in groups
        ],
        ended={run: _ended(run) for run in runs},
        dollars={run: _dollars(run) for run in runs},
        seconds={
            run: {name: sum(run.column(key)) for name, key in _SECONDS.items()} for run in runs
        },
        event_counts={
            run: Counter(str(event.get("event")).replace("_", " ") for event in run.events)
            for run in runs
        },
        sides=[side.name for side in sides],
        differences=differences(sides),
        made=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_text("uPlot-1.6.32.min.css") + _text("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _ended(run: RecordedRun) -> dict[str, Number | str | None]:
    """Returns what a run has reached, by name."""
    summary = run.summary
    return {
        "state": run.state.removeprefix("stopped by "),
        "last evaluation": run.last("evaluation_return_mean"),
        "best evaluation": max(run.column("evaluation_return_mean"), default=None),
        "training return": run.last("episode_return_mean"),
        "steps": run.last("env_steps_total"),
        "rounds": len(run.rows),
        "dollars": run.spent.spent_usd,
        "minutes by the clock": sum(run.column("round_s")) / 60,
        "actors": summary.get("actors", sum(run.column("actors_billed"))),
        "failed": summary.get("actors_failed", sum(run.column("actors_failed"))),
        "target": run.target_return,
        "budget $": run.budget_usd,
        "reserved $": run.spent.most_usd - run.spent.spent_usd,
    }


def _dollars(run: RecordedRun) -> dict[str, float]:
    """Returns a run's dollars by the parts of its rounds, dollars of unfinished rounds, and their sum."""
    parts: dict[str, float] = {name: sum(run.column(key)) for key, name in DOLLARS.items()}
    spent_usd = run.spent.spent_usd
    unfinished_usd = max(0.0, spent_usd - sum(run.column("round_cost_usd")))
    return parts | {UNFINISHED: unfinished_usd, "in all": spent_usd}


def _facts(runs: Sequence[RecordedRun], *keys: str) -> str:
    """Returns the summaries' values under these keys, each combination once."""
    facts = [", ".join(str(run.summary.get(key)) for key in keys) for run in runs if run.summary]
    return "; ".join(dict.fromkeys(facts))


def _shown(value: Number | str | None, digits: int | None = 0) -> str:
    """Formats a number with these decimals (None: as a return); the element's value has all digits."""
    if value is None or isinstance(value, str):
        return value or "–"
    text = return_text(value) if digits is None else f"{value:,.{digits}f}"
    return Markup('<data value="{}">{}</data>').format(json.dumps(value), text)


def _detail(event: Mapping[str, Any]) -> str:
    """Describes an event's fields in one line."""
    words = ", ".join(
        f"{key.replace('_', ' ')} {value}"
        for key, value in event.items()
        if key not in ("time", "event") and value not in (None, "")
    )
    return one_line(without_credentials(words), _DETAIL_CHARACTERS_MAX)


def _text(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
