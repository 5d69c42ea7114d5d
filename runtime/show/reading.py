"""Reads runs' records in any state: unreadable parts are reported, the rest is used."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runtime.errors import RunDirectoryError, RunError, without_credentials
from runtime.experiment import yaml_text
from runtime.experiment.schema import leaves
from runtime.records import layout
from runtime.records.files import json_object, read_json_object, whole_lines
from runtime.records.rows import RoundRow
from runtime.records.run_directory import is_held
from runtime.records.spent import Spent, spent_by_records

Number = float | int
Read = TypeVar("Read")
_RECORDS = (layout.CONFIG, layout.ROUNDS, layout.EVENTS, layout.SUMMARY, layout.LEDGER)
"""A directory with one of these files holds a run."""


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The readable records of one run.

    Attributes:
        name: For people.
        rows: Its finished rounds in order; see `runtime.records.rows`.
        state: Whether it still runs, was killed, or why it stopped.
        budget_usd: Its budget, also of one that has not ended; of one of several seeds, its share.
        summary: Contents of `summary.json`; empty if the run has not ended.
        settings: Used keys of `config.yaml`, by dotted path, with values as in a file.
        config_text: The same as text.
        events: Events of `events.jsonl`, in order.
        spent: Its costs.
        problems: A sentence for each unreadable part.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    state: str
    budget_usd: Number | None
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    config_text: str
    events: Sequence[Mapping[str, Any]]
    spent: Spent
    problems: Sequence[str]

    @property
    def target_return(self) -> float | None:
        """Its ``stop.target_return``."""
        return _number(self.settings.get("stop.target_return"))

    @property
    def basis(self) -> str:
        """Returns the basis of its dollars: ``metered`` if someone bills them, otherwise ``list prices``."""
        bases = [record.get("cost_basis") for record in (self.summary, *self.events)]
        return "metered" if "metered" in bases else "list prices"

    def column(self, key: str) -> list[Number]:
        """Returns the values of a key in the rows that have one."""
        return [row[key] for row in self.rows if row.get(key) is not None]

    def last(self, key: str) -> Number | None:
        """Returns the last value of a key; None if no row has one."""
        return next(reversed(self.column(key)), None)


@dataclass(frozen=True, eq=False)
class RecordedGroup:
    """A single run, or the runs of several seeds.

    Attributes:
        name: For people.
        runs: In the order of their seeds.
        problems: A sentence for each unreadable part of the group itself.
    """

    name: str
    runs: Sequence[RecordedRun]
    problems: Sequence[str] = ()


def read_groups(paths: Sequence[Path]) -> list[RecordedGroup]:
    """Reads runs and directories of seeds.

    Raises:
        RunDirectoryError: One of them holds no run.
    """
    for path in paths:
        if not any((path / name).exists() for name in _RECORDS):
            below = [str(file.parent) for file in sorted(path.glob(f"*/{layout.CONFIG}"))]
            raise RunDirectoryError(
                f"{path}: there is no run; allowed: a run, or several seeds, such as "
                + (" ".join(below) or "runs/hopper")
            )
    names = [path.resolve().name for path in paths]
    return [
        _read_group(path, name if names.count(name) == 1 else str(path))
        for path, name in zip(paths, names, strict=True)
    ]


def differences(sides: Sequence[RecordedGroup]) -> dict[str, list[str]]:
    """Returns the settings that differ between groups, by dotted path."""
    keys = dict.fromkeys(key for side in sides for run in side.runs for key in run.settings)
    values = {
        key: [
            ", ".join(dict.fromkeys(run.settings.get(key, "–") for run in side.runs))
            for side in sides
        ]
        for key in keys
    }
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def _read_group(path: Path, name: str) -> RecordedGroup:
    count = layout.seeds_in(path)
    if not count:
        return RecordedGroup(name, [_read_run(path, name)])
    folders = sorted(path.glob("seed-*"), key=lambda folder: (len(folder.name), folder.name))
    runs = [_read_run(folder, folder.name.replace("-", " ")) for folder in folders]
    problems: list[str] = []
    if len(runs) < count:
        problems.append(f"{count - len(runs)} of {count} seeds were not begun")
    return RecordedGroup(name, runs, problems)


def _read_run(path: Path, name: str) -> RecordedRun:
    problems: list[str] = []
    summary = _read(path / layout.SUMMARY, _object, problems) or {}
    rows = _read_lines(path / layout.ROUNDS, _row, problems)
    if summary.get("rounds", len(rows)) != len(rows):
        problems.append(
            f"{layout.SUMMARY} has {summary['rounds']} rounds, {layout.ROUNDS} has {len(rows)}"
        )
    text, settings = _read(path / layout.CONFIG, _settings, problems) or ("", {})
    budget_usd = _number(summary.get("budget_usd", settings.get("budget.usd")))
    whole = path
    if layout.seeds_in(path.parent):
        whole = path.parent
        # Its own budget is only its share of the seeds' budget.
        settings["budget.usd"] = str(
            read_json_object(path.parent / layout.SUMMARY).get("budget_usd", "–")
        )
    state = f"stopped by {summary.get('stop_reason')}" if summary else "not ended"
    if not summary and not (path / layout.DOWNLOADED).exists():
        state = "still running" if is_held(path) else "killed"
    if state == "killed" and settings.get("learner.kind") != "external":
        problems.append(
            "no process of this machine trains it; to continue it: python -m runtime train --out "
            f"{shlex.quote(str(whole))} --resume"
        )
    ledger = _read(path / layout.LEDGER, _object, problems) or {}
    return RecordedRun(
        name,
        rows,
        state,
        budget_usd,
        summary,
        settings,
        text,
        _read_lines(path / layout.EVENTS, json_object, problems),
        spent_by_records(ledger=ledger, rows=rows, summary=summary) or Spent(0.0, 0.0),
        problems,
    )


def _read(path: Path, read: Callable[[Path], Read], problems: list[str]) -> Read | None:
    """Reads a file; None if it is missing, or damaged, which is a problem and not an error."""
    try:
        return read(path) if path.exists() else None
    except (RunError, OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return None


def _object(path: Path) -> dict[str, Any]:
    return {**json.loads(path.read_bytes())}


def _settings(path: Path) -> tuple[str, dict[str, str]]:
    """Returns the text of `config.yaml`, and its values by dotted path."""
    text = without_credentials(path.read_text())
    return text, {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in leaves(yaml_text.parse(text, layout.CONFIG))
    }


def _number(value: Any) -> float | None:
    """Returns a recorded number; None if it is missing or is none."""
    with suppress(TypeError, ValueError):
        return float(value)
    return None


def _row(line: bytes) -> dict[str, Any]:
    with suppress(RunDirectoryError):
        return vars(RoundRow.from_json_line(line))
    return {}


def _read_lines(
    path: Path, read: Callable[[bytes], dict[str, Any]], problems: list[str]
) -> list[dict[str, Any]]:
    """Returns the contents of a file's whole lines; ``read`` returns nothing for a line that it refuses."""
    lines = _read(path, whole_lines, problems) or []
    contents = [content for line in lines if (content := read(line))]
    if len(contents) < len(lines):
        problems.append(
            f"{path.name}: {len(lines) - len(contents)} of {len(lines)} lines cannot be read, or "
            "another version of this program wrote them; they are left out"
        )
    return contents
