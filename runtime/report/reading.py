"""Reads runs' records in any state: unreadable parts are reported, the rest is used."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.config import yaml_text
from runtime.config.schema import leaves
from runtime.errors import ExperimentError, RunDirectoryError, without_credentials
from runtime.records import layout
from runtime.records.layout import RunFiles
from runtime.records.rows import RoundRow
from runtime.records.spent import spent_in

Number = float | int
Row = Mapping[str, Number | None]
_UNREADABLE = (OSError, ValueError, TypeError)
_VALUES_SHOWN = 5
_FAILED = ("failed", "interrupted")


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The readable records of one run.

    Attributes:
        name: For people.
        rows: Its finished rounds in order; each key of `RoundRow` has a finite number or None.
        summary: Contents of `summary.json`; empty if the run has not ended.
        settings: Used keys of `config.yaml`, by dotted path, with values as in a file.
        config_text: The same as text.
        events: Events of `events.jsonl`, in order.
        spent_usd: US dollars certainly spent, and additionally possibly spent.
        problems: A sentence for each unreadable part.
    """

    name: str
    rows: Sequence[Row]
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    config_text: str
    events: Sequence[Mapping[str, Any]]
    spent_usd: tuple[float, float]
    problems: Sequence[str]

    @property
    def is_finished(self) -> bool:
        """Returns whether it finished by itself, as estimates over seeds require."""
        return bool(self.summary) and self.summary.get("stop_reason") not in (None, *_FAILED)

    @property
    def basis(self) -> str:
        """Returns the basis of its dollars and billed seconds: ``modelled`` or ``metered``."""
        started = next(
            (event.get("cost_basis") for event in self.events if event["event"] == "run_started"),
            None,
        )
        return "metered" if "metered" in (self.summary.get("cost_basis"), started) else "modelled"

    @property
    def seed(self) -> int | None:
        """Returns its seed; None if its settings have none."""
        text = self.settings.get("seed", "")
        return int(text) if text.isdecimal() else None

    def value(self, key: str) -> Number | None:
        """Returns a number of `summary.json`, or None."""
        return number(self.summary.get(key))

    def total(self, key: str) -> Number | None:
        """Returns the sum of a column over all rounds; None if no round has it."""
        found = [value for row in self.rows if (value := row[key]) is not None]
        return sum(found) if found else None


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
    problems: Sequence[str] = field(default=())


def number(value: Any) -> Number | None:
    """Returns ``value`` if it is a number fit for sums, otherwise None."""
    return value if type(value) in (int, float) and math.isfinite(value) else None


def read_groups(paths: Sequence[Path]) -> list[RecordedGroup]:
    """Reads runs and directories of seeds.

    Raises:
        RunDirectoryError: One of them does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise RunDirectoryError(f"{path}: there is no such directory")
        if not path.is_dir():
            raise RunDirectoryError(
                f"{path}: is a file; allowed: the directory of a run or of several seeds"
            )
    found = [_name(path.resolve()) for path in paths]
    names = Counter(found)
    return [
        _read_group(path, name if names[name] == 1 else str(path))
        for path, name in zip(paths, found, strict=True)
    ]


def read_comparable(paths: Sequence[Path]) -> list[RecordedGroup]:
    """Reads runs and directories of seeds that must have data to compare.

    Raises:
        RunDirectoryError: One of them does not exist, is not a run, or has no finished round.
    """
    groups = read_groups(paths)
    for path, group in zip(paths, groups, strict=True):
        if not any(run.rows for run in group.runs):
            inside = next((one for one in sorted(path.iterdir()) if _is_run(one)), None)
            raise RunDirectoryError(
                f"{path}: "
                + (
                    "no round has finished yet"
                    if _is_run(path)
                    else f"holds no run, nor several seeds: neither {layout.CONFIG} nor {layout.SEEDS} is there"
                    + (f"; did you mean {inside}?" if inside else "")
                )
            )
    return groups


def _is_run(path: Path) -> bool:
    return layout.holds_seeds(path) or (path / layout.CONFIG).exists()


def merged_seeds(groups: Sequence[RecordedGroup]) -> list[RecordedGroup]:
    """Groups single runs that differ only in their seed, at the place of the first."""
    members: list[list[RecordedGroup]] = []
    for group in groups:
        home = next(
            (
                found
                for found in members
                if len(group.runs) == 1
                and _differ_only_in_seed([run for one in (*found, group) for run in one.runs])
            ),
            None,
        )
        if home is None:
            members.append([group])
        else:
            home.append(group)
    merged = [
        found[0]
        if len(found) == 1
        else RecordedGroup(
            _common_name([one.name for one in found]),
            sorted((run for one in found for run in one.runs), key=lambda run: run.seed or 0),
            [problem for one in found for problem in one.problems],
        )
        for found in members
    ]
    names = Counter(group.name for group in merged)
    values = {key: found for key, found in differences(merged).items() if key != "seed"}

    def distinct_name(place: int, name: str) -> str:
        """Distinguishes groups with the same name by their differences."""
        told = [f"{key.rpartition('.')[2]} {found[place]}" for key, found in values.items()]
        return name if names[name] == 1 else ", ".join([name, *told])

    return [
        RecordedGroup(distinct_name(place, group.name), group.runs, group.problems)
        for place, group in enumerate(merged)
    ]


def _common_name(names: Sequence[str]) -> str:
    """Returns the common start of the names, without the seed; all names if there is none."""
    return re.sub(r"[\W_]+(seed|s)?[\W_]*\d*$", "", os.path.commonprefix(list(names))) or ", ".join(
        names
    )


def _differ_only_in_seed(runs: Sequence[RecordedRun]) -> bool:
    settings = [
        {key: value for key, value in run.settings.items() if key != "seed"} for run in runs
    ]
    seeds = {run.seed for run in runs} - {None}
    return all(one and one == settings[0] for one in settings) and len(seeds) == len(runs)


def separated(groups: Sequence[RecordedGroup]) -> list[RecordedGroup]:
    """Returns the groups or, for a single group, each of its runs as a group."""
    return (
        list(groups)
        if len(groups) > 1
        else [RecordedGroup(run.name, [run]) for run in groups[0].runs]
    )


def differences(groups: Sequence[RecordedGroup]) -> dict[str, list[str]]:
    """Returns the settings that differ between groups, by dotted path."""
    keys = dict.fromkeys(key for group in groups for run in group.runs for key in run.settings)
    values = {
        key: [_together([run.settings.get(key, "–") for run in group.runs]) for group in groups]
        for key in keys
    }
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def _together(values: Sequence[str]) -> str:
    """Returns the distinct values of a group's runs; of many, the first and the last."""
    unique = list(dict.fromkeys(values))
    if len(unique) <= _VALUES_SHOWN:
        return ", ".join(unique)
    return f"{unique[0]} … {unique[-1]} ({len(unique)} values)"


def _name(path: Path) -> str:
    """Returns the directory's name, with its parent if it is a mere number, or a seed."""
    is_telling = any(letter.isalpha() for letter in path.name) and not layout.holds_seeds(
        path.parent
    )
    return path.name if is_telling else f"{path.parent.name}/{path.name}"


def _read_group(path: Path, name: str) -> RecordedGroup:
    if not layout.holds_seeds(path):
        return RecordedGroup(name, [read_run(path, name)])
    problems: list[str] = []
    document = _read_object(path / layout.SEEDS, problems)
    seeds: Any = document.get("seeds")
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        problems.append(
            f"{layout.SEEDS} does not say which seeds there are: those whose directories are there count"
        )
        seeds = sorted(
            int(found.name.removeprefix("seed-"))
            for found in path.glob("seed-*")
            if found.name.removeprefix("seed-").isdecimal()
        )
    seeds = list(dict.fromkeys(seeds))
    folders = {seed: path / f"seed-{seed}" for seed in seeds}
    # Seeds to come have no directory yet.
    runs = [read_run(folder, f"seed {seed}") for seed, folder in folders.items() if folder.exists()]
    if len(runs) < len(folders):
        problems.append(f"{len(folders) - len(runs)} of {len(folders)} seeds were not begun")
    return RecordedGroup(name, runs, problems)


def read_run(path: Path, name: str) -> RecordedRun:
    """Reads the run in the directory ``path``, whatever it contains."""
    files, problems = RunFiles(path), list[str]()
    known = (files.config_path, files.rounds_path, files.summary_path, files.events_path)
    if not any(one.exists() for one in known):
        problems.append(
            "this is no directory"
            if not path.is_dir()
            else f"no records of a run are here: none of {', '.join(one.name for one in known)}"
        )
        return RecordedRun(name, [], {}, {}, "", [], (0.0, 0.0), problems)
    summary: Mapping[str, Any] = {}
    if files.summary_path.exists():
        summary = _read_object(files.summary_path, problems)
    else:
        problems.append(
            f"it has not ended, as there is no {layout.SUMMARY}: it still runs, or it was killed"
        )
    rows, text = _read_rows(files.rounds_path, problems), ""
    settings: dict[str, Any] = {}
    try:
        text = without_credentials(files.config_path.read_bytes().decode())
        tree = yaml_text.parse(text, layout.CONFIG)
        if not isinstance(tree, dict):
            raise ValueError("it is no mapping of sections")
        settings = {
            key: value
            if isinstance(value, str)
            else json.dumps(value, default=str, ensure_ascii=False)
            for key, value in leaves(tree)
        }
        if (path.parent / layout.SUMMARY).exists() and layout.holds_seeds(path.parent):
            # Its own budget is only its share of the seeds' budget.
            settings["budget.usd"] = str(
                _read_object(path.parent / layout.SUMMARY, problems).get("budget_usd")
            )
    except FileNotFoundError:
        problems.append(f"there is no {layout.CONFIG}")
    except (ExperimentError, *_UNREADABLE) as error:
        problems.append(f"{layout.CONFIG} cannot be read: {error}")
    if number(summary.get("rounds")) not in (None, len(rows)):
        problems.append(
            f"{layout.SUMMARY} tells of {summary['rounds']} rounds, {layout.ROUNDS} of {len(rows)}"
        )
    spent = spent_in(path)
    return RecordedRun(
        name,
        rows,
        summary,
        settings,
        text,
        _read_lines(files.events_path, "event", str, problems),
        (number(summary.get("spent_usd")) or spent.spent_usd, spent.reserved_usd),
        problems,
    )


def _read_object(path: Path, problems: list[str]) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError(f"it is no JSON object but {type(found).__name__}")
        return found
    except _UNREADABLE as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}


def _read_lines(path: Path, key: str, kind: type, problems: list[str]) -> list[dict[str, Any]]:
    """Returns the objects in a file of JSON lines whose ``key`` has that type."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return []
    if lines and not lines[-1].endswith(b"\n"):
        problems.append(f"{path.name}: the last line was written only in part, and is left out")
        lines.pop()
    found, damaged = [], list[int]()
    for place, line in enumerate(lines, 1):
        try:
            one = json.loads(line)
        except ValueError:
            one = None
        if isinstance(one, dict) and type(one.get(key)) is kind:
            found.append(one)
        else:
            damaged.append(place)
    if damaged:
        problems.append(
            f"{path.name}: {len(damaged)} of {len(lines)} lines cannot be read, and are left out; the "
            f"first is line {damaged[0]}"
        )
    return found


def _read_rows(path: Path, problems: list[str]) -> list[Row]:
    columns = RoundRow.columns()
    rows: dict[int, Row] = {}
    lacking, no_numbers, twice = set[str](), Counter[str](), 0
    for found in _read_lines(path, "round_index", int, problems):
        if found["round_index"] < 1:
            no_numbers["round_index"] += 1
            continue
        row = {key: number(found.get(key)) for key in columns}
        lacking |= columns.keys() - found.keys() - RoundRow.optional()
        no_numbers.update(key for key in columns if row[key] is None and found.get(key) is not None)
        twice += found["round_index"] in rows
        rows[found["round_index"]] = row
    if lacking:
        problems.append(
            f"{path.name} lacks {', '.join(key for key in columns if key in lacking)} in some rounds: an "
            "older version of this program wrote it, or it was altered"
        )
    if no_numbers:
        problems.append(
            f"{path.name}: {', '.join(f'{key} ({times}×)' for key, times in no_numbers.items())}: no "
            "number, or not a finite one; left out"
        )
    if twice:
        problems.append(f"{path.name}: {twice} rounds are there twice; the later one counts")
    if rows and max(rows) != len(rows):
        problems.append(f"{path.name}: only {len(rows)} of rounds 1 to {max(rows)} are there")
    return [rows[index] for index in sorted(rows)]
