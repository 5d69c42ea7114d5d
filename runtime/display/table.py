"""Displays a running run: a live table on a terminal, otherwise one plain line per round."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.config.schema import Experiment
from runtime.display.terminal import spent_of
from runtime.ports.run import Display
from runtime.records import layout
from runtime.records.rows import RoundRow, return_text

_ROUNDS_SHOWN = 12
_EVENTS_SHOWN = 4
_RATE_ROUNDS = 10
_WIDE_COLUMNS, _NARROW_COLUMNS = 90, 66
_QUIET_EVENTS = ("run_started", "run_ended", "actor_replaced")
"""Each replacement follows a displayed failure."""
_ALIKE_SHOWN = 3
_BAR_CELLS = 20
_OTHER_LINES = 8
"""Lines of the live display without rounds and events: a heading, four bars, an evaluation, the pace, an empty line."""
_EVALUATION_LINE_S = 30.0
"""Seconds between the plain display's reports of a long evaluation."""
_CALL_LINE_S = 1.0
"""Seconds between lines about a pool's calls, of which hundreds may end in a second."""
_SENTENCES = {
    "round_fitted": "round {round_index} gets {granted} of the {wanted} actors wanted: {reason}",
    "limits_tightened": "round {round_index}: only ${free_usd:.4f} are free, so a round may now take at most "
    "{factor:g} times as long as the last ones",
    "waits_unknown": "the environment waits for something, or this machine is very busy. This system does not tell "
    "which, so the modelled bill leaves waits out",
}
"""Events described in a sentence; all others by their fields."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*")


def differing_settings(experiment: Experiment) -> str:
    """Returns the settings that differ from the defaults, in a file's form."""
    return f"# what differs from the defaults; config.yaml and --verbose have the rest\n{experiment.given_yaml()}\n"


def all_settings(experiment: Experiment) -> str:
    """Returns all settings, in a file's form."""
    return f"{experiment.to_yaml()}\n"


def make_display(
    experiment: Experiment, *, settings: Callable[[Experiment], str] = differing_settings
) -> Display:
    """Returns the live display if standard output is a terminal, otherwise the plain one.

    Args:
        experiment: Resolved.
        settings: Returns the settings to show before the first round.
    """
    return (LiveDisplay if sys.stdout.isatty() else PlainDisplay)(
        experiment, sys.stdout, settings=settings
    )


class Forecast:
    """Steps per second and time left, from the last rounds and the last evaluation."""

    def __init__(self, experiment: Experiment, clock: Callable[[], float] = time.monotonic) -> None:
        self._stop, self._budget_usd, self._clock = experiment.stop, experiment.budget.usd, clock
        self._marks: deque[tuple[float, int, int, float]] = deque(maxlen=_RATE_ROUNDS + 1)
        self._started_s = clock()
        self._evaluation_begun_s = self._evaluation_s = 0.0

    def started(self) -> None:
        """Marks the start of the first round, because imports do not belong to its pace."""
        self._started_s = self._clock()

    def evaluating(self, done: int, episodes: int) -> None:
        """Records an evaluation's duration, from its finished episodes."""
        if done == 0:
            self._evaluation_begun_s = self._clock()
        else:
            self._evaluation_s = (self._clock() - self._evaluation_begun_s) / done * episodes

    def add(self, row: RoundRow) -> None:
        if not self._marks:
            self._marks.append(
                (
                    self._started_s,
                    row.round_index - 1,
                    row.env_steps_total - row.env_steps,
                    row.spent_usd - row.round_cost_usd,
                )
            )
        self._marks.append((self._clock(), row.round_index, row.env_steps_total, row.spent_usd))

    @property
    def steps_per_s(self) -> float:
        (start_s, _, start_steps, _), (end_s, _, end_steps, _) = self._marks[0], self._marks[-1]
        return (end_steps - start_steps) / max(end_s - start_s, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Returns the time until the first limit at the present pace; a target return may come earlier.

        Includes the evaluation of the last round's policy, unless the budget ends the run.
        """
        start, end = self._marks[0], self._marks[-1]
        elapsed_s = max(end[0] - start[0], 1e-9)
        left = []
        for column, limit, last_s in (
            (1, self._stop.max_rounds, self._evaluation_s),
            (2, self._stop.max_steps, self._evaluation_s),
            (3, self._budget_usd, 0.0),
        ):
            pace = (end[column] - start[column]) / elapsed_s
            if limit is not None and pace > 0:
                left.append(
                    max(0.0, limit - end[column]) / pace + (last_s if limit > end[column] else 0.0)
                )
        return max(0.0, min(left, default=0.0) - (self._clock() - end[0]))


@dataclass(frozen=True)
class Goal:
    """A run's progress towards one of its ends.

    Attributes:
        name: ``target``, ``steps``, ``rounds`` or ``budget``.
        share: From 0 to 1.
        words: The same in numbers, for people.
    """

    name: str
    share: float
    words: str


class Goals:
    """A run's progress towards its target return and each of its limits."""

    def __init__(self, experiment: Experiment) -> None:
        self._stop, self._budget_usd = experiment.stop, experiment.budget.usd
        self._first: float | None = None
        self._trained: float | None = None
        self._evaluated: float | None = None

    def after(self, row: RoundRow) -> list[Goal]:
        """Returns one for each end that the experiment file names, after a round."""
        self._evaluated = (
            row.evaluation_return_mean
            if row.evaluation_return_mean is not None
            else self._evaluated
        )
        if row.episode_return_mean is not None:
            self._trained = row.episode_return_mean
        now = self._evaluated if self._evaluated is not None else self._trained
        if self._first is None:
            self._first = self._trained
        found, stop = [], self._stop
        if (target := stop.target_return) is not None:
            words = f"{return_text(now)} of {target:,g}" + (
                "" if self._evaluated is not None else " in training"
            )
            found.append(Goal("target", self._way(now, target), words))
        for name, value, limit in (
            ("steps", row.env_steps_total, stop.max_steps),
            ("rounds", row.round_index, stop.max_rounds),
        ):
            if limit is not None:
                found.append(Goal(name, min(1.0, value / limit), f"{value:,} of {limit:,}"))
        return [
            *found,
            Goal(
                "budget",
                min(1.0, row.spent_usd / self._budget_usd),
                spent_of(row.spent_usd, self._budget_usd),
            ),
        ]

    def _way(self, now: float | None, target: float) -> float:
        """Returns the share of the way from the first return, because returns may begin far below 0."""
        if now is None or self._first is None:
            return 0.0
        if now >= target or self._first >= target:
            return float(now >= target)
        return max(0.0, (now - self._first) / (target - self._first))


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


class _TextDisplay(Display):
    """Base of both displays, with their lines before the first round."""

    def __init__(
        self,
        experiment: Experiment,
        stream: TextIO,
        *,
        settings: Callable[[Experiment], str] = differing_settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment, self._stream, self._settings, self._clock = (
            experiment,
            stream,
            settings,
            clock,
        )
        self._forecast, self._goals, self._lines = (
            Forecast(experiment, clock),
            Goals(experiment),
            EventLines(),
        )

    def started(
        self, experiment: Experiment, facts: Mapping[str, str], rows: Sequence[RoundRow] = ()
    ) -> None:
        self._forecast.started()
        for row in rows:
            self._goals.after(row)
        self._print(
            self._settings(experiment)
            + "\n".join(f"{name}: {value}" for name, value in facts.items())
        )

    def _print(self, text: str) -> None:
        # A closed pipe must not end a training. One write, because there are two threads.
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()


class PlainDisplay(_TextDisplay):
    """Prints one line per round and per event."""

    _told_s = 0.0

    def evaluating(self, round_index: int, done: int, episodes: int) -> None:
        self._forecast.evaluating(done, episodes)
        now_s = self._clock()
        if done == 0:
            self._told_s = now_s
        elif done < episodes and now_s - self._told_s >= _EVALUATION_LINE_S:
            self._told_s = now_s
            self._print(
                f"evaluating the policy of round {round_index}: {done} of {episodes} episodes"
            )

    def on_round_end(self, row: RoundRow) -> None:
        self._forecast.add(row)
        shares = ", ".join(
            f"{goal.name} {math.floor(100 * goal.share)}%" for goal in self._goals.after(row)
        )
        self._print(
            f"round {row.round_index:>4}  steps {row.env_steps_total:>9,}  "
            f"return {return_text(row.episode_return_mean):>8}  "
            f"evaluation {return_text(row.evaluation_return_mean):>8}  actors {_actors(row):>7}  "
            + "".join(
                f"{name} {show(row):>8}  "
                for name, show in {
                    **_signal_columns(self._experiment),
                    **_staleness_columns(self._experiment),
                }.items()
            )
            + f"{self._forecast.steps_per_s:>7,.0f} steps/s  "
            f"{spent_of(row.spent_usd, self._experiment.budget.usd)}  "
            f"ETA {_duration(self._forecast.seconds_left)}  ({shares})"
        )

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._lines.line(kind, fields)) is not None:
            self._print(line)


class PoolDisplay(_TextDisplay):
    """A line for each call of a pool; of calls that end within a second, only for the last one."""

    _steps, _told_s = 0, -math.inf
    _row: RoundRow | None = None

    def started(
        self, experiment: Experiment, facts: Mapping[str, str], rows: Sequence[RoundRow] = ()
    ) -> None:
        super().started(experiment, facts, rows)
        self._started_s = self._clock()

    def on_round_end(self, row: RoundRow) -> None:
        self._steps, self._row = self._steps + row.env_steps, row
        if self._clock() - self._told_s >= _CALL_LINE_S:
            self.close()

    def close(self) -> None:
        row, self._row, self._told_s = self._row, None, self._clock()
        if row is not None:
            self._print(
                f"call {row.round_index:>5}  steps {row.env_steps_total:>9,}  "
                f"return {return_text(row.episode_return_mean):>8}  actors {_actors(row):>7}  "
                f"{self._steps / max(self._told_s - self._started_s, 1e-9):>7,.0f} steps/s  "
                f"{spent_of(row.spent_usd, self._experiment.budget.usd)}"
            )


class LiveDisplay(_TextDisplay):
    """A table of the last rounds, redrawn in place by a thread."""

    def __init__(self, experiment: Experiment, stream: TextIO, **options: Any) -> None:
        super().__init__(experiment, stream, **options)
        self._console = Console(file=stream)
        self._rows: deque[RoundRow] = deque(maxlen=_ROUNDS_SHOWN)
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._ways: list[Goal] = []
        self._evaluation: Goal | None = None
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=4)

    def started(
        self, experiment: Experiment, facts: Mapping[str, str], rows: Sequence[RoundRow] = ()
    ) -> None:
        super().started(experiment, facts, rows)
        with suppress(OSError, ValueError):
            self._live.start()

    def on_round_end(self, row: RoundRow) -> None:
        self._forecast.add(row)
        self._ways = self._goals.after(row)
        self._rows.append(row)

    def evaluating(self, round_index: int, done: int, episodes: int) -> None:
        self._forecast.evaluating(done, episodes)
        words = f"{done} of {episodes} episodes, after round {round_index}"
        self._evaluation = Goal("evaluation", done / episodes, words) if done < episodes else None

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if (line := self._lines.line(kind, fields)) is not None:
            self._events.append(line)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._live.stop()

    def _picture(self) -> Group:
        columns: dict[str, Callable[[RoundRow], str]] = {
            "round": lambda row: str(row.round_index),
            "steps": lambda row: f"{row.env_steps_total:,}",
            "return": lambda row: return_text(row.episode_return_mean),
            "eval": lambda row: return_text(row.evaluation_return_mean),
            "actors": _actors,
            **(_signal_columns(self._experiment) if self._console.width >= _NARROW_COLUMNS else {}),
        }
        if self._console.width >= _NARROW_COLUMNS:
            columns |= {"spent $": lambda row: f"{row.spent_usd:.4f}"}
        if self._console.width >= _WIDE_COLUMNS:
            columns |= {
                "KL": lambda row: _number(row.kl, 4),
                "round s": lambda row: f"{row.round_s:.2f}",
            }
        if self._console.width >= _NARROW_COLUMNS:
            columns |= _staleness_columns(self._experiment)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        events = list(self._events)
        room = self._console.height - _OTHER_LINES - len(events)
        for row in list(self._rows)[-max(1, room) :]:
            table.add_row(*(show(row) for show in columns.values()))
        return Group(
            table,
            self._status(),
            *(Text(event, style="yellow", overflow="ellipsis", no_wrap=True) for event in events),
        )

    def _status(self) -> Text:
        """Returns bars for all ends, and the pace."""
        lines = [] if self._rows else [f"first round … budget ${self._experiment.budget.usd:g}"]
        cells = _BAR_CELLS if self._console.width >= _NARROW_COLUMNS else _BAR_CELLS // 2
        evaluation = self._evaluation
        for goal in [*self._ways, *([evaluation] if evaluation is not None else [])]:
            lines.append(
                f"{goal.name:<11}{'█' * int(cells * goal.share):░<{cells}} {goal.share:>4.0%}  {goal.words}"
            )
        if self._rows:
            lines.append(
                f"{self._forecast.steps_per_s:,.0f} steps/s · ETA {_duration(self._forecast.seconds_left)}"
            )
        return Text(
            "\n".join(lines),
            style="cyan" if self._rows else "dim",
            overflow="ellipsis",
            no_wrap=True,
        )


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
    parts = {
        "actors": "actors_cost_usd",
        "provisioned": "provisioned_cost_usd",
        "learner": "learner_cost_usd",
        "rest": "infrastructure_cost_usd",
    }
    if summary["unfinished_rounds_cost_usd"] >= 0.00005:
        parts["unfinished rounds"] = "unfinished_rounds_cost_usd"
    return [
        f"stopped by   {summary['stop_reason']}"
        + (f": {summary['error']}" if summary["error"] else ""),
        f"return       {_evaluated(summary, [*launcher, 'evaluate', *['--trust'] * names_code, out])}",
        *_best_lines(summary),
        f"             {return_text(summary['episode_return_mean'])} in training, where actions are noisy",
        f"rounds       {summary['rounds']:,} with {summary['actors']:,} actors"
        + (f", {summary['actors_failed']:,} failed" if summary["actors_failed"] else ""),
        f"steps        {summary['env_steps_total']:,}",
        *_dropped_lines(summary),
        f"cost         {spent_of(summary['spent_usd'], summary['budget_usd'])}"
        + (
            f", ${summary['usd_per_million_steps']:.4f} per million steps"
            if summary["env_steps_total"]
            else ""
        ),
        "             " + ", ".join(f"{name} ${summary[key]:.4f}" for name, key in parts.items()),
        f"             {_basis(summary)}",
        *_time_lines(summary),
        f"results      {out}",
        *report_lines(out),
        *(actors_log_lines(out) if are_actors_to_blame else []),
        *(
            resume_lines(resume_command, must_mend=must_mend)
            if summary["stop_reason"] in ("interrupted", "failed")
            else []
        ),
    ]


def _time_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describes how long it took; also with a machine per actor, if actors are billed separately."""
    took = f"time         {_duration(summary['measured_session_s'])}" + (
        " since it was resumed" if summary["was_resumed"] else ""
    )
    if not summary["actors_cost_usd"]:
        return [took]
    return [
        f"{took}; the whole run modelled {_duration(summary['modelled_s'])}",
        "             with every actor on a machine of its own",
    ]


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
    return f"modelled, {prices}; nothing was billed"


def _evaluated(summary: Mapping[str, Any], command: Sequence[str]) -> str:
    if summary["evaluation_return_mean"] is None:
        return f"not evaluated: {shlex.join(command)}"
    best = " (the best)" if summary["evaluation_round"] == summary["evaluation_round_best"] else ""
    value, index = return_text(summary["evaluation_return_mean"]), summary["evaluation_round"]
    return f"{value}, evaluated after round {index}{best}"


def _dropped_lines(summary: Mapping[str, Any]) -> list[str]:
    """Describes wasted steps, if any."""
    episodes, steps = summary["episodes_dropped"], summary["steps_dropped"]
    if not episodes:
        return []
    return [
        f"dropped      {episodes:,} episodes"
        + (
            f", {steps / (steps + summary['env_steps_total']):.0%} of the steps played"
            if steps
            else ""
        )
    ]


def _best_lines(summary: Mapping[str, Any]) -> list[str]:
    """Names the best evaluated policy, if it is not the last one."""
    if summary["evaluation_round_best"] in (None, summary["evaluation_round"]):
        return []
    return [
        f"             best {return_text(summary['evaluation_return_best'])}, after round "
        f"{summary['evaluation_round_best']}: {summary['best_policy_file']}"
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _actors(row: RoundRow) -> str:
    wanted = f"/{row.actor_count_wanted}" if row.actor_count != row.actor_count_wanted else ""
    return f"{row.actor_count}{wanted}"


def _signal_columns(experiment: Experiment) -> dict[str, Callable[[RoundRow], str]]:
    """Returns columns of the scaler's signals and score."""
    settings = experiment.scaler
    columns: dict[str, Callable[[RoundRow], str]] = {}
    if "convexity_ratio" in settings.signals:
        columns["R"] = lambda row: _number(row.convexity_ratio, 3)
    if settings.has_score:
        columns["score"] = lambda row: _number(row.boosting_score, 2)
    return columns


def _staleness_columns(experiment: Experiment) -> dict[str, Callable[[RoundRow], str]]:
    """Returns columns of staleness, of trajectories or gradients."""
    if experiment.learner.has_gradients:
        return {"grads": _gradients, "stale": lambda row: _number(row.gradient_staleness_mean, 1)}
    if experiment.algorithm.rounds == "asynchronous":
        # Mean and maximum, in policy versions.
        return {"stale": lambda row: f"{row.staleness_mean:.1f}/{row.staleness_max}"}
    return {}


def _gradients(row: RoundRow) -> str:
    """Applied gradients, out of all that were begun."""
    return f"{row.gradients}" + (
        f"/{(row.gradients or 0) + row.gradients_lost}" if row.gradients_lost else ""
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
