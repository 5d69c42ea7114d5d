"""What a run leaves in its directory, written so that a crash at any instant loses no finished round."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.errors import RunDirectoryError
from runtime.records.rows import RoundRow


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces ``path`` by ``data``: afterwards, and after any crash, it is either the old or the new, whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        # On a full disk it would keep the disk full.
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def to_json(value: Any) -> bytes:
    """Indented JSON; NaN and infinity are refused."""
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


class RunDirectory:
    """The files of one run; held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Creates the directory where it is missing, and locks it.

        Raises:
            RunDirectoryError: It cannot be created or written, or another process trains in it.
        """
        self.path = path
        try:
            self._is_new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise RunDirectoryError(f"--out {path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunDirectoryError(f"--out {path}: another process is training there") from None
        self.config_path = path / "config.yaml"
        self.prices_path = path / "prices.json"
        self.rounds_path = path / "rounds.jsonl"
        self.events_path = path / "events.jsonl"
        self.summary_path = path / "summary.json"
        self.ledger_path = path / "ledger.json"
        self.policy_path = path / "policy.safetensors"
        self.checkpoints_path = path / "checkpoints"
        self.tensorboard_path = path / "tensorboard"
        self.actors_log_path = path / "actors.log"

    @property
    def holds_run(self) -> bool:
        """Whether anything of a run is there."""
        return (any(path.exists() for path in (self.config_path, self.rounds_path))
                or any(self.checkpoints_path.glob("round_*.json")))

    def close(self) -> None:
        """Lets go of the directory; removes it again where nothing was ever started in it."""
        if self._is_new and not self.holds_run:
            for path in (self.path / ".lock", self.events_path, self.ledger_path, self.actors_log_path):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()
        self._lock.close()

    def append_round(self, row: RoundRow) -> None:
        """Adds a finished round's row, which is on disk when this returns."""
        _append(self.rounds_path, row.to_json_line(), sync=True)

    def check_rounds(self, round_index: int) -> None:
        """Checks that the rows are those of one run whose newest sound checkpoint is of ``round_index``.

        Raises:
            RunDirectoryError: The rows until there are not rounds 1 to ``round_index``, once each and in order; or
                there is no checkpoint, but there are more rows than a kill before the first one can leave.
        """
        found = [int(index) for index in map(_round_index, self._lines()) if index < math.inf]
        until, after = found[:round_index], found[round_index:]
        if (until != list(range(1, round_index + 1)) or any(index <= round_index for index in after)
                or (round_index == 0 and len(after) > 1)):
            raise RunDirectoryError(
                f"{self.rounds_path} has rounds {_shortened(found)}, but the newest sound checkpoint is of round "
                f"{round_index}: something of this run was lost or mixed with another; nothing was changed")

    def cut_rounds_back(self, round_index: int) -> None:
        """Removes all rows after that round, and a last row that was written only in part."""
        if self.rounds_path.exists():
            write_atomically(self.rounds_path, b"".join(
                line for line in self._lines() if _round_index(line) <= round_index))

    def read_rounds(self) -> list[RoundRow]:
        """Reads all rows except a last one that was written only in part.

        Raises:
            RunDirectoryError: A row is not one that this version writes.
        """
        return [RoundRow.from_json_line(line) for line in self._lines() if _round_index(line) < math.inf]

    def _lines(self) -> list[bytes]:
        return self.rounds_path.read_bytes().splitlines(keepends=True) if self.rounds_path.exists() else []


class EventLog:
    """events.jsonl: what happened besides finished rounds, each with its time."""

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        """Args:
        now: Returns the time of day, ISO 8601.
        """
        self._path, self._now = path, now
        self._listeners: list[Callable[[str, Mapping[str, Any]], None]] = []

    def listen(self, listener: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._listeners.append(listener)

    def append(self, kind: str, **fields: Any) -> None:
        event = {"time": self._now(), "event": kind, **fields}
        _append(self._path, json.dumps(event, allow_nan=False).encode() + b"\n", sync=False)
        for listener in self._listeners:
            listener(kind, fields)


def _append(path: Path, line: bytes, *, sync: bool) -> None:
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _round_index(line: bytes) -> float:
    """Of a row; infinite for one that is not whole."""
    try:
        return float(json.loads(line)["round_index"] + 0.0) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _shortened(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown}, … ({len(indices)} in all)" if len(indices) > 8 else shown or "none"
