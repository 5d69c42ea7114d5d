"""Displays a running run: a live table on a terminal, otherwise one plain line per round."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.experiment.schema import Experiment
from runtime.records.observers import Display
from runtime.records.rows import RoundRow, return_text
from runtime.show.event_lines import EventLines
from runtime.show.terminal import duration, spent_of

Columns = dict[str, Callable[[RoundRow], str]]
"""What a round's line shows, by its heading."""
_ROUNDS_SHOWN = 12
_EVENTS_SHOWN = 4
_RATE_ROUNDS = 10
_COLUMN_CELLS = 9
"""Estimated width of a column: a narrow terminal shows fewer of them."""
_BAR_CELLS = 20
_OTHER_LINES = 8
"""Lines of the live display without rounds and events: a heading, bars, a target, an evaluation, the pace."""
_CALL_LINE_S = 1.0
"""Seconds between lines about a pool's calls, of which hundreds may end in a second."""


def make_display(experiment: Experiment, *, has_settings: bool = True) -> Display:
    """Returns the live display if standard output is a terminal, otherwise the plain one.

    Args:
        experiment: Resolved.
        has_settings: Whether it shows the settings before the first round.
    """
    kind = LiveDisplay if sys.stdout.isatty() else PlainDisplay
    return kind(experiment, sys.stdout, has_settings=has_settings)


def settings_text(experiment: Experiment) -> str:
    """Returns the settings that differ from the defaults, in a file's form."""
    return (
        f"# what differs from the defaults; config.yaml has the rest\n{experiment.given_yaml()}\n"
    )


class Pace:
    """Steps per second, the used share of each limit, and the time until the first one is reached."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float]) -> None:
        stop = experiment.stop
        self._budget_usd = experiment.budget.usd
        limits = {"steps": stop.max_steps, "rounds": stop.max_rounds, "budget": self._budget_usd}
        self._limits = {name: limit for name, limit in limits.items() if limit is not None}
        self._clock = clock
        self._marks: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=_RATE_ROUNDS + 1)
        self.started()

    def started(self) -> None:
        """Marks the start of the first round, because imports do not belong to its pace."""
        self._started_s = self._clock()

    def add(self, row: RoundRow) -> None:
        used = {
            "steps": row.env_steps_total,
            "rounds": row.round_index,
            "budget": row.spent_usd,
        }
        if not self._marks:
            of_round = {"steps": row.env_steps, "rounds": 1, "budget": row.round_cost_usd}
            before = {name: value - of_round[name] for name, value in used.items()}
            self._marks.append((self._started_s, before))
        self._marks.append((self._clock(), used))

    @property
    def steps_text(self) -> str:
        (_, before), (_, now) = self._marks[0], self._marks[-1]
        return f"{(now['steps'] - before['steps']) / self._seconds:,.0f} steps/s"

    @property
    def text(self) -> str:
        (_, before), (end_s, now) = self._marks[0], self._marks[-1]
        left = [
            (limit - now[name]) * self._seconds / (now[name] - before[name])
            for name, limit in self._limits.items()
            if now[name] > before[name]
        ]
        left_s = max(0.0, min(left, default=0.0) - (self._clock() - end_s))
        return f"{self.steps_text}  ETA {duration(left_s)}"

    @property
    def spent_text(self) -> str:
        return spent_of(self._marks[-1][1]["budget"], self._budget_usd)

    def shares(self) -> dict[str, tuple[float, str]]:
        """Returns the used share of each limit, and the same in numbers."""
        used = self._marks[-1][1]
        return {
            name: (
                used[name] / limit,
                self.spent_text if name == "budget" else f"{used[name]:,} of {limit:,}",
            )
            for name, limit in self._limits.items()
        }

    @property
    def _seconds(self) -> float:
        return max(self._marks[-1][0] - self._marks[0][0], 1e-9)


class PlainDisplay(Display):
    """Prints one line per round and per event."""

    def __init__(
        self,
        experiment: Experiment,
        stream: TextIO,
        *,
        has_settings: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment = experiment
        self._stream = stream
        self._has_settings = has_settings
        self._clock = clock
        self._pace = Pace(experiment, clock)
        self._events = EventLines()
        self._columns = _columns(experiment)

    def started(self, experiment: Experiment, facts: Mapping[str, str]) -> None:
        self._pace.started()
        settings = settings_text(experiment) * self._has_settings
        self._print(settings + "\n".join(f"{name}: {value}" for name, value in facts.items()))

    def on_round_end(self, row: RoundRow) -> None:
        self._pace.add(row)
        used = ", ".join(f"{name} {share:.0%}" for name, (share, _) in self._pace.shares().items())
        self._print(
            f"{_cells(self._columns, row)}  {self._pace.text}  {self._pace.spent_text}  ({used})"
        )

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._events.line(kind, fields)) is not None:
            self._show_event(line)

    def _show_event(self, line: str) -> None:
        self._print(line)

    def _print(self, text: str) -> None:
        # A closed pipe must not end a training. One write, because there are two threads.
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


class PoolDisplay(PlainDisplay):
    """A line for each call of a pool; of calls that end within a second, only for the last one."""

    _printed_s = 0.0
    _row: RoundRow | None = None

    def on_round_end(self, row: RoundRow) -> None:
        self._pace.add(row)
        self._row = row
        if self._clock() - self._printed_s >= _CALL_LINE_S:
            self.close()

    def close(self) -> None:
        """Prints the line of the last call, unless it is printed; more calls may follow."""
        row, self._row = self._row, None
        self._printed_s = self._clock()
        if row is not None:
            shown = {name: self._columns[name] for name in ("steps", "return", "actors")}
            cells = _cells({"call": self._columns["round"]} | shown, row)
            self._print(f"{cells}  {self._pace.steps_text}  {self._pace.spent_text}")


class LiveDisplay(PlainDisplay):
    """A table of the last rounds, redrawn in place by a thread."""

    def __init__(self, experiment: Experiment, stream: TextIO, **options: Any) -> None:
        super().__init__(experiment, stream, **options)
        self._console = Console(file=stream)
        self._rows: deque[RoundRow] = deque(maxlen=_ROUNDS_SHOWN)
        self._warnings: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._return: float | None = None
        self._evaluation = ""
        self._columns |= {
            "spent $": lambda row: f"{row.spent_usd:.4f}",
            "KL": lambda row: _number(row.kl, 4),
            "round s": lambda row: f"{row.round_s:.2f}",
        }
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=4)

    def started(self, experiment: Experiment, facts: Mapping[str, str]) -> None:
        super().started(experiment, facts)
        with suppress(OSError, ValueError):
            self._live.start()

    def on_round_end(self, row: RoundRow) -> None:
        self._pace.add(row)
        self._rows.append(row)
        if row.evaluation_return_mean is not None:
            self._return = row.evaluation_return_mean

    def evaluating(self, round_index: int, done: int, episodes: int) -> None:
        words = f"{'evaluation':<11}{done} of {episodes} episodes, after round {round_index}"
        self._evaluation = words if done < episodes else ""

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _show_event(self, line: str) -> None:
        self._warnings.append(line)

    def _picture(self) -> Group:
        table = Table(box=None, pad_edge=False, header_style="bold")
        names = list(self._columns)[: self._console.width // _COLUMN_CELLS]
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        warnings = list(self._warnings)
        room = max(1, self._console.height - _OTHER_LINES - len(warnings))
        for row in list(self._rows)[-room:]:
            table.add_row(*(self._columns[name](row) for name in names))
        texts = [(self._status(), "cyan"), *((line, "yellow") for line in warnings)]
        return Group(
            table, *(Text(text, style, overflow="ellipsis", no_wrap=True) for text, style in texts)
        )

    def _status(self) -> str:
        """Returns the return, bars for all limits, and the pace."""
        if not self._rows:
            return f"first round … budget ${self._experiment.budget.usd:g}"
        lines = [self._evaluation] * bool(self._evaluation)
        target = self._experiment.stop.target_return
        if target is not None:
            lines.append(f"{'target':<11}{return_text(self._return)} of {target:,g}, evaluated")
        for name, (share, words) in self._pace.shares().items():
            bar = "█" * int(_BAR_CELLS * share)
            lines.append(f"{name:<11}{bar:░<{_BAR_CELLS}} {share:>4.0%}  {words}")
        return "\n".join([*lines, self._pace.text])


def _columns(experiment: Experiment) -> Columns:
    """Returns the columns that fit the experiment: its scaler's signals, its staleness."""
    columns: Columns = {
        "round": lambda row: str(row.round_index),
        "steps": lambda row: f"{row.env_steps_total:,}",
        "return": lambda row: return_text(row.episode_return_mean),
        "evaluation": lambda row: return_text(row.evaluation_return_mean),
        "actors": lambda row: (
            str(row.actor_count)
            if row.actor_count == row.actor_count_wanted
            else f"{row.actor_count}/{row.actor_count_wanted}"
        ),
    }
    if "convexity_ratio" in experiment.scaler.signals:
        columns["R"] = lambda row: _number(row.convexity_ratio, 3)
    if experiment.scaler.has_score:
        columns["score"] = lambda row: _number(row.boosting_score, 2)
    if experiment.learner.has_gradients:
        columns["grads"] = lambda row: str(row.gradients)
        columns["stale"] = lambda row: _number(row.gradient_staleness_mean, 1)
    elif experiment.algorithm.rounds == "asynchronous":
        # Mean and maximum, in policy versions.
        columns["stale"] = lambda row: f"{row.staleness_mean:.1f}/{row.staleness_max}"
    return columns


def _cells(columns: Columns, row: RoundRow) -> str:
    widths = {"round": 4, "call": 4}
    return "  ".join(f"{name} {show(row):>{widths.get(name, 8)}}" for name, show in columns.items())


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
