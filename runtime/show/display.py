"""Displays a running run: a table with a line for each round, and its events between them."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from runtime.experiment.schema import Experiment
from runtime.records.observers import Display
from runtime.records.rows import RoundRow, return_text
from runtime.show.terminal import duration

_HEADING_LINES = 20
"""Rounds after which the heading is repeated."""
_RATE_ROUNDS = 10
_CALL_LINE_S = 1.0
"""Seconds between lines about a pool's calls, of which hundreds may end in a second."""
_WIDTHS = {
    "round": 5,
    "call": 5,
    "steps": 9,
    "return": 8,
    "evaluation": 10,
    "steps/s": 7,
    "ETA": 7,
    "spent $": 7,
}
"""Characters of a column; others have `_WIDTH`. With Nitro's scaler, a line has 80."""
_WIDTH = 6
_QUIET = ("run_started", "run_ended", "actor_replaced")
"""Each replacement follows a displayed failure."""
_ALIKE_SHOWN = 3
_SENTENCES = {
    "round_fitted": "round {round_index} gets {granted} of the {wanted} actors wanted: {reason}",
    "limits_tightened": "round {round_index}: the ${free_usd:.4f} left cannot hold a round at its time limits, "
    "so each now reserves a quarter more than the last ones took",
    "reservation_forfeited": "the run was killed: ${usd:.5f} of ${reserved_usd:.5f} reserved are spent",
    "waits_unknown": "the environment waits for something, or this machine is very busy. This system does not tell "
    "which, so dollars leave waits out",
}
"""Events described in a sentence; all others by their fields."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*")


def settings_text(experiment: Experiment) -> str:
    """Returns the settings that differ from the defaults, in a file's form."""
    return (
        f"# what differs from the defaults; config.yaml has the rest\n{experiment.given_yaml()}\n"
    )


class Pace:
    """Steps per second over the last rounds, and the time until the first limit is reached."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float]) -> None:
        stop = experiment.stop
        self._limits = stop.max_steps, stop.max_rounds, experiment.budget.usd
        self._clock = clock
        self._marks: deque[tuple[float, Sequence[float]]] = deque(maxlen=_RATE_ROUNDS + 1)

    def cells(self, row: RoundRow) -> dict[str, str]:
        """Returns the pace after another round; it is unknown after the first one, whose actors start cold."""
        used = row.env_steps_total, row.round_index, row.spent_usd
        self._marks.append((self._clock(), used))
        begin_s, before = self._marks[0]
        if len(self._marks) == 1:
            return {"steps/s": "–", "ETA": "–"}
        seconds = max(self._clock() - begin_s, 1e-9)
        left_s = [
            max(0.0, limit - now) * seconds / (now - earlier)
            for limit, now, earlier in zip(self._limits, used, before, strict=True)
            if limit is not None and now > earlier
        ]
        return {
            "steps/s": f"{(used[0] - before[0]) / seconds:,.0f}",
            "ETA": duration(min(left_s, default=0.0)),
        }


class EventLines:
    """Formats events as lines; only the first few with the same error, which may occur in every actor."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def line(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """Returns None to show nothing."""
        # At a run's end, some actors are always in flight.
        is_usual_end = kind == "actors_abandoned" and fields["reason"] == "the run ends"
        if kind in _QUIET or is_usual_end:
            return None
        if kind in _SENTENCES:
            return f"! {_SENTENCES[kind].format(**fields)}"
        name = kind.replace("_", " ")
        if fields.get("error"):
            # Errors that differ only in a time or an address look the same to people.
            alike = kind, _NUMBER.sub("#", str(fields["error"]))
            self._seen[alike] += 1
            if self._seen[alike] > _ALIKE_SHOWN:
                return None
            if self._seen[alike] == _ALIKE_SHOWN:
                name += " (more like this are only in events.jsonl)"
        words = (
            f"{key} {f'{value:.4g}' if isinstance(value, float) else value}"
            for key, value in fields.items()
            if value is not None
        )
        return f"! {name}: {', '.join(words)}"


class RunDisplay(Display):
    """Prints a line per round and per event."""

    def __init__(
        self,
        experiment: Experiment,
        stream: TextIO | None = None,
        *,
        has_settings: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Shows nothing yet.

        Args:
            experiment: Resolved.
            stream: Where to print; None = standard output.
            has_settings: Whether the settings are shown before the first round.
        """
        self._experiment = experiment
        self._stream = stream or sys.stdout
        self._has_settings = has_settings
        self._clock = clock
        self._pace = Pace(experiment, clock)
        self._events = EventLines()
        self._rounds = 0

    def started(self, experiment: Experiment, facts: Mapping[str, str]) -> None:
        settings = settings_text(experiment) * self._has_settings
        self._print(settings + "\n".join(f"{name}: {value}" for name, value in facts.items()))

    def on_round_end(self, row: RoundRow) -> None:
        self._print_row(self._cells(row))

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._events.line(kind, fields)) is not None:
            self._print(line)

    def _cells(self, row: RoundRow) -> dict[str, str]:
        """Returns a round's cells by heading: its scaler's signals and its staleness among them."""
        experiment = self._experiment
        actors = str(row.actor_count)
        if row.actor_count != row.actor_count_wanted:
            actors += f"/{row.actor_count_wanted}"
        cells = {
            "round": str(row.round_index),
            "steps": f"{row.env_steps_total:,}",
            "return": return_text(row.episode_return_mean),
            "evaluation": return_text(row.evaluation_return_mean),
            "actors": actors,
        }
        if "convexity_ratio" in experiment.scaler.signals:
            cells["R"] = _number(row.convexity_ratio, 3)
        if experiment.scaler.has_score:
            cells["score"] = _number(row.boosting_score, 2)
        if experiment.learner.has_gradients:
            cells["grads"] = str(row.gradients)
            cells["stale"] = _number(row.gradient_staleness_mean, 1)
        elif experiment.algorithm.rounds == "asynchronous":
            # Mean and maximum, in policy versions.
            cells["stale"] = f"{row.staleness_mean:.1f}/{row.staleness_max}"
        return cells | self._pace.cells(row) | {"spent $": f"{row.spent_usd:.4f}"}

    def _print_row(self, cells: Mapping[str, str]) -> None:
        heading, line = (
            " ".join(f"{text:>{_WIDTHS.get(name, _WIDTH)}}" for name, text in texts.items())
            for texts in ({name: name for name in cells}, cells)
        )
        is_headed = self._rounds % _HEADING_LINES == 0
        self._rounds += 1
        self._print(f"{heading}\n{line}" if is_headed else line)

    def _print(self, text: str) -> None:
        # A closed pipe must not end a training. One write, because there are two threads.
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


class PoolDisplay(RunDisplay):
    """A line for each call of a pool; of calls that end within a second, only for the last one."""

    _printed_s = 0.0
    _waiting: Mapping[str, str] | None = None

    def on_round_end(self, row: RoundRow) -> None:
        cells = self._cells(row)
        shown = ("steps", "return", "actors", "steps/s", "spent $")
        self._waiting = {"call": cells["round"]} | {name: cells[name] for name in shown}
        if self._clock() - self._printed_s >= _CALL_LINE_S:
            self.close()

    def close(self) -> None:
        """Prints the line of the last call, unless it is printed; more calls may follow."""
        if self._waiting is not None:
            self._print_row(self._waiting)
        self._waiting = None
        self._printed_s = self._clock()


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
