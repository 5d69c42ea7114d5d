"""What a user sees while a run runs: a live table on a terminal, one plain line a round elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.config.schema import Experiment
from runtime.interfaces import Display
from runtime.records import layout
from runtime.records.rows import RoundRow

_ROUNDS_SHOWN = 12
_EVENTS_SHOWN = 4
_RATE_ROUNDS = 10
_WIDE_COLUMNS, _NARROW_COLUMNS = 90, 66
_QUIET_EVENTS = ("run_started", "run_ended", "actor_replaced")
"""Each replacement follows a failure, which is shown."""
_ALIKE_SHOWN = 3
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*")


def make_display(experiment: Experiment, stream: TextIO | None = None) -> Display:
    """The live display where ``stream`` (standard output) is a terminal, else the plain one."""
    stream = stream or sys.stdout
    return FailSafeDisplay(
        LiveDisplay(experiment, stream) if stream.isatty() else PlainDisplay(experiment, stream))


class FailSafeDisplay:
    """Passes everything on until that fails for the first time: a closed pipe must not end a training."""

    def __init__(self, display: Display) -> None:
        self._display: Display | None = display

    def started(self, experiment_yaml: str, facts: Mapping[str, str]) -> None:
        self._call("started", experiment_yaml, facts)

    def round_finished(self, row: RoundRow) -> None:
        self._call("round_finished", row)

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._call("event", kind, fields)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            if self._display is not None:
                getattr(self._display, method)(*arguments)
        except (OSError, ValueError):
            self._display = None


class Forecast:
    """Steps per second and time left, from the pace of the last rounds."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop, self._budget_usd, self._clock = experiment.stop, experiment.budget.usd, clock
        self._marks: deque[tuple[float, int, int, float]] = deque(maxlen=_RATE_ROUNDS + 1)
        self._started_s = clock()

    def add(self, row: RoundRow) -> None:
        if not self._marks:
            self._marks.append((self._started_s, row.round_index - 1, row.env_steps_total - row.env_steps,
                                row.spent_usd - row.round_cost_usd))
        self._marks.append((self._clock(), row.round_index, row.env_steps_total, row.spent_usd))

    @property
    def steps_per_s(self) -> float:
        (start_s, _, start_steps, _), (end_s, _, end_steps, _) = self._marks[0], self._marks[-1]
        return (end_steps - start_steps) / max(end_s - start_s, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Until the first of the limits is reached at the present pace; a target return may come earlier."""
        start, end = self._marks[0], self._marks[-1]
        elapsed_s = max(end[0] - start[0], 1e-9)
        left = []
        for column, limit in ((1, self._stop.max_rounds), (2, self._stop.max_steps), (3, self._budget_usd)):
            pace = (end[column] - start[column]) / elapsed_s
            if limit is not None and pace > 0:
                left.append(max(0.0, limit - end[column]) / pace)
        return min(left, default=0.0)


class EventLines:
    """Events as lines; of those with the same error only the first few, as an environment may fail in every actor."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def line(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """None if nothing is to be shown."""
        # At a run's end there are always actors in flight that nobody waits for any more.
        if kind in _QUIET_EVENTS or (kind == "actors_abandoned" and fields["reason"] == "the run ends"):
            return None
        name, words = kind.replace("_", " "), ", ".join(
            f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in fields.items()
            if value is not None)
        if fields.get("error"):
            # Errors that differ in a time or an address are the same to people.
            alike = kind, _NUMBER.sub("#", str(fields["error"]))
            self._seen[alike] += 1
            if self._seen[alike] > _ALIKE_SHOWN:
                return None
            if self._seen[alike] == _ALIKE_SHOWN:
                name += " (more like this are only in events.jsonl)"
        return f"! {name}: {words}"


class PlainDisplay:
    """One line for each round and each event."""

    def __init__(self, experiment: Experiment, stream: TextIO) -> None:
        self._experiment, self._stream, self._forecast = experiment, stream, Forecast(experiment)
        self._lines = EventLines()

    def started(self, experiment_yaml: str, facts: Mapping[str, str]) -> None:
        self._print(experiment_yaml.rstrip())
        for name, value in facts.items():
            self._print(f"{name}: {value}")

    def round_finished(self, row: RoundRow) -> None:
        self._forecast.add(row)
        self._print(
            f"round {row.round_index:>4}  steps {row.env_steps_total:>9,}  "
            f"return {_number(row.episode_return_mean, 1):>8}  "
            f"evaluation {_number(row.evaluation_return_mean, 1):>8}  actors {_actors(row):>7}  "
            f"R {_number(row.convexity_ratio, 3):>8}  score {_number(row.boosting_score, 2):>5}  "
            + "".join(f"{name} {show(row):>8}  " for name, show in _staleness_columns(self._experiment).items()) +
            f"{self._forecast.steps_per_s:>7,.0f} steps/s  "
            f"${row.spent_usd:.4f} of ${self._experiment.budget.usd:g}  "
            f"ETA {_duration(self._forecast.seconds_left)}")

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._lines.line(kind, fields)) is not None:
            self._print(line)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class LiveDisplay:
    """A table of the last rounds that is redrawn in place."""

    def __init__(self, experiment: Experiment, stream: TextIO) -> None:
        self._experiment, self._forecast = experiment, Forecast(experiment)
        self._console = Console(file=stream)
        self._rows: deque[RoundRow] = deque(maxlen=_ROUNDS_SHOWN)
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._lines = EventLines()
        self._live: Live | None = None

    def started(self, experiment_yaml: str, facts: Mapping[str, str]) -> None:
        self._console.print(experiment_yaml.rstrip(), markup=False, highlight=False)
        for name, value in facts.items():
            self._console.print(f"{name}: {value}", markup=False, highlight=False)
        self._live = Live(self._picture(), console=self._console, refresh_per_second=4)
        self._live.start()

    def round_finished(self, row: RoundRow) -> None:
        self._forecast.add(row)
        self._rows.append(row)
        self._refresh()

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._lines.line(kind, fields)) is not None:
            self._events.append(line)
            self._refresh()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        columns: dict[str, Callable[[RoundRow], str]] = {
            "round": lambda row: str(row.round_index),
            "steps": lambda row: f"{row.env_steps_total:,}",
            "return": lambda row: _number(row.episode_return_mean, 1),
            "eval": lambda row: _number(row.evaluation_return_mean, 1),
            "actors": _actors,
            "R": lambda row: _number(row.convexity_ratio, 2),
            "score": lambda row: _number(row.boosting_score, 2),
            "spent $": lambda row: f"{row.spent_usd:.4f}",
        }
        if self._console.width >= _WIDE_COLUMNS:
            columns |= {"KL": lambda row: _number(row.kl, 4), "round s": lambda row: f"{row.round_s:.2f}"}
        if self._console.width >= _NARROW_COLUMNS:
            columns |= _staleness_columns(self._experiment)
        if self._console.width < _NARROW_COLUMNS:
            for name in ("R", "score", "spent $"):
                del columns[name]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(show(row) for show in columns.values()))
        parts: list[Any] = [table, self._status()]
        parts += [Text(event, style="yellow", overflow="ellipsis", no_wrap=True) for event in self._events]
        return Group(*parts)

    def _status(self) -> Text:
        budget_usd = self._experiment.budget.usd
        if not self._rows:
            return Text(f"first round … budget ${budget_usd:g}", style="dim")
        row = self._rows[-1]
        share = min(1.0, row.spent_usd / budget_usd)
        bar = "█" * round(10 * share)
        return Text(f"{self._forecast.steps_per_s:,.0f} steps/s · ETA {_duration(self._forecast.seconds_left)} · "
                    f"{bar:░<10} ${row.spent_usd:.4f} of ${budget_usd:g}", style="cyan", overflow="ellipsis",
                    no_wrap=True)


def summary_lines(summary: Mapping[str, Any], out: str) -> list[str]:
    """A finished run, for people; lines of 79 characters at most, but for paths and errors."""
    parts = {"actors": "actors_cost_usd", "provisioned": "provisioned_cost_usd", "learner": "learner_cost_usd",
             "rest": "infrastructure_cost_usd"}
    if summary["unfinished_rounds_cost_usd"] >= 0.00005:
        parts["unfinished rounds"] = "unfinished_rounds_cost_usd"
    return [
        f"stopped by   {summary['stop_reason']}" + (f": {summary['error']}" if summary["error"] else ""),
        f"return       {_evaluated(summary, out)}",
        *_best_lines(summary),
        f"             {_number(summary['episode_return_mean'], 1)} in training, where actions are noisy",
        f"rounds       {summary['rounds']:,} with {summary['actors']:,} actors"
        + (f", {summary['actors_failed']:,} failed" if summary["actors_failed"] else ""),
        f"steps        {summary['env_steps_total']:,}",
        f"cost         ${summary['spent_usd']:.4f} of ${summary['budget_usd']:g}"
        + (f", ${summary['usd_per_million_steps']:.4f} per million steps" if summary["env_steps_total"] else ""),
        "             " + ", ".join(f"{name} ${summary[key]:.4f}" for name, key in parts.items()),
        f"             {_basis(summary)}",
        f"time         {_duration(summary['measured_session_s'])} in its last session; the whole run modelled "
        f"{_duration(summary['modelled_s'])}",
        "             with every actor on a machine of its own",
        f"results      {out}",
        *report_lines(out),
        *([f"go on with    the same command, --out {out} and --resume"]
          if summary["stop_reason"] in ("interrupted", "failed") else []),
    ]


def report_lines(out: str) -> list[str]:
    """Where the report is; empty if there is none."""
    path = Path(out) / layout.REPORT
    return [f"report       {path}"] if path.exists() else []


def _basis(summary: Mapping[str, Any]) -> str:
    prices = f"list prices of {summary['prices_region']}, {summary['prices_as_of']}"
    if summary["cost_basis"] == "metered":
        return f"what was used, at {prices}; the bill that you get is what counts"
    return f"modelled, {prices}; nothing was billed"


def _evaluated(summary: Mapping[str, Any], out: str) -> str:
    if summary["evaluation_return_mean"] is None:
        return f"not evaluated: python -m runtime evaluate {out}"
    best = " (the best)" if summary["evaluation_round"] == summary["evaluation_round_best"] else ""
    return f"{summary['evaluation_return_mean']:,.1f}, evaluated after round {summary['evaluation_round']}{best}"


def _best_lines(summary: Mapping[str, Any]) -> list[str]:
    """Where the best evaluated policy is, if that is not the last evaluated one."""
    if summary["evaluation_round_best"] in (None, summary["evaluation_round"]):
        return []
    return [f"             best {summary['evaluation_return_best']:,.1f}, after round "
            f"{summary['evaluation_round_best']}: {summary['best_policy_file']}"]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _actors(row: RoundRow) -> str:
    wanted = f"/{row.actor_count_wanted}" if row.actor_count != row.actor_count_wanted else ""
    return f"{row.actor_count}{wanted}"


def _staleness_columns(experiment: Experiment) -> dict[str, Callable[[RoundRow], str]]:
    """Columns of a run that has staleness: of its trajectories, or of its gradients."""
    if experiment.learner.kind == "stellaris":
        return {"grads": _gradients, "stale": lambda row: _number(row.gradient_staleness_mean, 1)}
    return {"stale": _staleness} if experiment.algorithm.rounds == "asynchronous" else {}


def _gradients(row: RoundRow) -> str:
    """Those that were applied, of all that were begun."""
    return f"{row.gradients}" + (f"/{(row.gradients or 0) + row.gradients_lost}" if row.gradients_lost else "")


def _staleness(row: RoundRow) -> str:
    """Mean and maximum, in policy versions."""
    return f"{row.staleness_mean:.1f}/{row.staleness_max}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
