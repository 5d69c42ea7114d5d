"""Displays a running run: a live table on a terminal, otherwise one plain line per round."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.experiment.schema import Experiment
from runtime.records import layout
from runtime.records.observers import Display
from runtime.records.rows import RoundRow, return_text
from runtime.show.terminal import spent_of

Columns = dict[str, Callable[[RoundRow], str]]
"""What a round's line shows, by its heading."""
_ROUNDS_SHOWN = 12
_EVENTS_SHOWN = 4
_RATE_ROUNDS = 10
_COLUMN_CELLS = 9
"""Estimated width of a column: a narrow terminal shows fewer of them."""
_QUIET_EVENTS = ("run_started", "run_ended", "actor_replaced")
"""Each replacement follows a displayed failure."""
_ALIKE_SHOWN = 3
_BAR_CELLS = 20
_OTHER_LINES = 8
"""Lines of the live display without rounds and events: a heading, bars, a target, an evaluation, the pace."""
_CALL_LINE_S = 1.0
"""Seconds between lines about a pool's calls, of which hundreds may end in a second."""
_SENTENCES = {
    "round_fitted": "round {round_index} gets {granted} of the {wanted} actors wanted: {reason}",
    "limits_tightened": "round {round_index}: only ${free_usd:.4f} are free, so a round may now take at most "
    "{factor:g} times as long as the last ones",
    "waits_unknown": "the environment waits for something, or this machine is very busy. This system does not tell "
    "which, so dollars leave waits out",
}
"""Events described in a sentence; all others by their fields."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*")


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
    """Steps per second and the time until the first limit, from the last rounds."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float]) -> None:
        stop = experiment.stop
        self._limits = (stop.max_rounds, stop.max_steps, experiment.budget.usd)
        self._clock = clock
        self._marks: deque[tuple[float, int, int, float]] = deque(maxlen=_RATE_ROUNDS + 1)
        self.started()

    def started(self) -> None:
        """Marks the start of the first round, because imports do not belong to its pace."""
        self._started_s = self._clock()

    def add(self, row: RoundRow) -> None:
        if not self._marks:
            steps, usd = row.env_steps_total - row.env_steps, row.spent_usd - row.round_cost_usd
            self._marks.append((self._started_s, row.round_index - 1, steps, usd))
        self._marks.append((self._clock(), row.round_index, row.env_steps_total, row.spent_usd))

    @property
    def text(self) -> str:
        (start_s, *start), (end_s, *end) = self._marks[0], self._marks[-1]
        seconds = max(end_s - start_s, 1e-9)
        left = [
            (limit - now) * seconds / (now - before)
            for before, now, limit in zip(start, end, self._limits, strict=True)
            if limit is not None and now > before
        ]
        left_s = max(0.0, min(left, default=0.0) - (self._clock() - end_s))
        return f"{(end[1] - start[1]) / seconds:,.0f} steps/s  ETA {_duration(left_s)}"


def _shares(experiment: Experiment, row: RoundRow) -> dict[str, tuple[float, str]]:
    """Returns the used share of each limit, and the same in numbers."""
    stop, budget_usd = experiment.stop, experiment.budget.usd
    counts = {
        "steps": (row.env_steps_total, stop.max_steps),
        "rounds": (row.round_index, stop.max_rounds),
    }
    shares = {
        name: (count / limit, f"{count:,} of {limit:,}")
        for name, (count, limit) in counts.items()
        if limit is not None
    }
    return shares | {"budget": (row.spent_usd / budget_usd, spent_of(row.spent_usd, budget_usd))}


class EventLines:
    """Formats events as lines; only the first few with the same error, which may occur in every actor."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def line(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """Returns None to show nothing."""
        # At a run's end, some actors are always in flight.
        if kind in _QUIET_EVENTS or (
            kind == "actors_abandoned" and fields["reason"] == "the run ends"
        ):
            return None
        if kind in _SENTENCES:
            return f"! {_SENTENCES[kind].format(**fields)}"
        name, words = (
            kind.replace("_", " "),
            ", ".join(
                f"{name} {f'{value:.4g}' if isinstance(value, float) else value}"
                for name, value in fields.items()
                if value is not None
            ),
        )
        if fields.get("error"):
            # Errors that differ only in a time or an address look the same to people.
            alike = kind, _NUMBER.sub("#", str(fields["error"]))
            self._seen[alike] += 1
            if self._seen[alike] > _ALIKE_SHOWN:
                return None
            if self._seen[alike] == _ALIKE_SHOWN:
                name += " (more like this are only in events.jsonl)"
        return f"! {name}: {words}"


class Silent(Display):
    """Shows nothing."""


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
        self._has_settings = has_settings
        self._experiment = experiment
        self._stream = stream
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
        shares = _shares(self._experiment, row).items()
        used = ", ".join(f"{name} {int(100 * share)}%" for name, (share, _) in shares)
        spent = spent_of(row.spent_usd, self._experiment.budget.usd)
        self._print(f"{_cells(self._columns, row)}  {self._pace.text}  {spent}  ({used})")

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._events.line(kind, fields)) is not None:
            self._print(line)

    def _print(self, text: str) -> None:
        # A closed pipe must not end a training. One write, because there are two threads.
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


class PoolDisplay(PlainDisplay):
    """A line for each call of a pool; of calls that end within a second, only for the last one."""

    _told_s = 0.0
    _row: RoundRow | None = None

    def on_round_end(self, row: RoundRow) -> None:
        self._pace.add(row)
        self._row = row
        if self._clock() - self._told_s >= _CALL_LINE_S:
            self.close()

    def close(self) -> None:
        """Prints the line of the last call, unless it is printed; more calls may follow."""
        row, self._row = self._row, None
        self._told_s = self._clock()
        if row is not None:
            columns = {"call": self._columns["round"]} | {
                name: self._columns[name] for name in ("steps", "return", "actors")
            }
            spent = spent_of(row.spent_usd, self._experiment.budget.usd)
            pace = self._pace.text.partition("  ")[0]
            self._print(f"{_cells(columns, row)}  {pace}  {spent}")


class LiveDisplay(PlainDisplay):
    """A table of the last rounds, redrawn in place by a thread."""

    def __init__(self, experiment: Experiment, stream: TextIO, **options: Any) -> None:
        super().__init__(experiment, stream, **options)
        self._console = Console(file=stream)
        self._rows: deque[RoundRow] = deque(maxlen=_ROUNDS_SHOWN)
        self._warnings: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._return: float | None = None
        self._evaluation = ""
        self._columns["spent $"] = lambda row: f"{row.spent_usd:.4f}"
        self._columns["KL"] = lambda row: _number(row.kl, 4)
        self._columns["round s"] = lambda row: f"{row.round_s:.2f}"
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

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._events.line(kind, fields)) is not None:
            self._warnings.append(line)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

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
        row, target = self._rows[-1], self._experiment.stop.target_return
        lines = [self._evaluation] * bool(self._evaluation)
        if target is not None:
            lines.append(f"{'target':<11}{return_text(self._return)} of {target:,g}, evaluated")
        for name, (share, words) in _shares(self._experiment, row).items():
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
        "actors": _actors,
    }
    if "convexity_ratio" in experiment.scaler.signals:
        columns["R"] = lambda row: _number(row.convexity_ratio, 3)
    if experiment.scaler.has_score:
        columns["score"] = lambda row: _number(row.boosting_score, 2)
    if experiment.learner.has_gradients:
        columns["grads"] = _gradients
        columns["stale"] = lambda row: _number(row.gradient_staleness_mean, 1)
    elif experiment.algorithm.rounds == "asynchronous":
        # Mean and maximum, in policy versions.
        columns["stale"] = lambda row: f"{row.staleness_mean:.1f}/{row.staleness_max}"
    return columns


def _cells(columns: Columns, row: RoundRow) -> str:
    widths = {"round": 4, "call": 4}
    return "  ".join(f"{name} {show(row):>{widths.get(name, 8)}}" for name, show in columns.items())


def summary_lines(
    summary: Mapping[str, Any],
    out: str,
    *,
    launcher: Sequence[str] = ("python", "-m", "runtime"),
    resume_command: str = "",
    are_actors_to_blame: bool = False,
    must_mend: str = "",
    names_code: bool = False,
) -> list[str]:
    """Describes a finished run in lines of at most 79 characters, except for paths, errors and commands.

    Args:
        summary: Contents of `summary.json`.
        out: The run's directory.
        launcher: How the user calls this program.
        resume_command: Command that continues the run, shown if useful; empty to show none.
        are_actors_to_blame: Whether it failed because its actors did.
        must_mend: The user's part to mend first; "" for nothing.
        names_code: Whether its policy needs ``--trust``.
    """
    stop_reason, best_round = summary["stop_reason"], summary["evaluation_round_best"]
    value, round_index = summary["evaluation_return_mean"], summary["evaluation_round"]
    command = shlex.join([*launcher, "evaluate", *["--trust"] * names_code, out])
    parts = {
        "actors": "actors_cost_usd",
        "provisioned": "provisioned_cost_usd",
        "learner": "learner_cost_usd",
        "rest": "infrastructure_cost_usd",
        "unfinished rounds": "unfinished_rounds_cost_usd",
    }
    session = ", since it was resumed" if summary["was_resumed"] else ""
    facts = [
        ("stopped by", f"{stop_reason}: {summary['error']}" if summary["error"] else stop_reason),
        ("return", f"not evaluated: {command}"),
        ("", f"{return_text(summary['episode_return_mean'])} in training, where actions are noisy"),
        ("rounds", f"{summary['rounds']:,} with {summary['actors']:,} actors"),
        ("", f"{summary['actors_failed']:,} actors failed" * bool(summary["actors_failed"])),
        ("steps", f"{summary['env_steps_total']:,}"),
        ("dropped", f"{summary['steps_dropped']:,} steps" * bool(summary["episodes_dropped"])),
        ("cost", spent_of(summary["spent_usd"], summary["budget_usd"])),
        (
            "",
            ", ".join(f"{name} ${summary[key]:.4f}" for name, key in parts.items() if summary[key]),
        ),
        ("", _basis(summary)),
        ("time", _duration(summary["measured_session_s"]) + session),
        ("results", out),
    ]
    if value is not None:
        facts[1] = ("return", f"{return_text(value)}, evaluated after round {round_index}")
    if best_round not in (None, round_index):
        best = f"best {return_text(summary['evaluation_return_best'])}, after round {best_round}"
        facts.insert(2, ("", f"{best}: {summary['best_policy_file']}"))
    lines = [f"{label:<13}{text}" for label, text in facts if text] + report_lines(out)
    if are_actors_to_blame:
        lines += actors_log_lines(out)
    if stop_reason in ("interrupted", "failed"):
        lines += resume_lines(resume_command, must_mend=must_mend)
    return lines


def resume_lines(command: str, *, must_mend: str = "") -> list[str]:
    """Describes how to continue, with a command to paste; empty if there is none.

    Args:
        command: Resumes the run.
        must_mend: The user's part to mend first; "" for nothing.
    """
    words = (
        f"mend the {must_mend} first: it would fail again. Then resume with"
        if must_mend
        else "go on with"
    )
    return ["", words, command] if command else []


def actors_log_lines(out: str) -> list[str]:
    """Names the actors' log; empty if they printed nothing."""
    path = Path(out) / layout.ACTORS_LOG
    return [f"actors' log  {path}"] if path.exists() and path.stat().st_size else []


def report_lines(out: str) -> list[str]:
    """Names the report; empty if there is none."""
    path = Path(out) / layout.REPORT
    return [f"report       {path}"] if path.exists() else []


def _basis(summary: Mapping[str, Any]) -> str:
    prices = f"list prices of {summary['prices_region']}, {summary['prices_as_of']}"
    if summary["cost_basis"] == "metered":
        return f"what was used, at {prices}; the bill that you get is what counts"
    return f"seconds of this machine at {prices}; nothing was billed"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _actors(row: RoundRow) -> str:
    wanted = f"/{row.actor_count_wanted}" if row.actor_count != row.actor_count_wanted else ""
    return f"{row.actor_count}{wanted}"


def _gradients(row: RoundRow) -> str:
    """Applied gradients, out of all that were begun."""
    return f"{row.gradients}" + (
        f"/{(row.gradients or 0) + row.gradients_lost}" if row.gradients_lost else ""
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
