"""A run's directory, written so that no crash loses a finished round."""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runtime.errors import RunDirectoryError
from runtime.records import layout
from runtime.records.files import (
    append,
    json_object,
    make_directory,
    open_to_write,
    remove,
    whole_lines,
    write_atomically,
)
from runtime.records.rows import RoundRow

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Answers of file systems without locks, such as some NFS and Lustre mounts."""


def is_held(path: Path) -> bool:
    """Returns whether a process of this machine trains in the directory, or has a pool open there."""
    try:
        with (path / layout.LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


class RunDirectory:
    """The files of one run; only one process at a time holds them.

    Attributes:
        path: The directory. `runtime.records.layout` names the files in it.
        unlocked_because: Why it is not locked: its file system has no locks; empty if it is.
    """

    def __init__(self, path: Path) -> None:
        """Creates the directory if it is missing, and locks it.

        Raises:
            RunDirectoryError: It cannot be created or written, or another process trains in it.
        """
        self.path = path
        self.unlocked_because = ""
        try:
            self._is_new = not path.exists()
            make_directory(path)
            self._lock = open_to_write(path / layout.LOCK)
        except OSError as error:
            raise RunDirectoryError(
                f"out = {path}: cannot be written: {error.strerror or error}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                self.unlocked_because = str(error.strerror)
                return
            self._lock.close()
            reason = f"cannot be locked: {error.strerror}"
            if isinstance(error, BlockingIOError):
                reason = "another process trains there, or a pool is open"
            raise RunDirectoryError(f"out = {path}: {reason}") from None

    @property
    def holds_run(self) -> bool:
        """Returns whether there are files of a run."""
        names = layout.CONFIG, layout.ROUNDS
        return any((self.path / name).exists() for name in names) or any(
            (self.path / layout.CHECKPOINTS).glob("round_*.json")
        )

    def close(self) -> None:
        """Releases the directory, and removes it if nothing was ever started in it."""
        try:
            if self._is_new and not self.holds_run:
                for name in (layout.LOCK, layout.EVENTS, layout.LEDGER, layout.ACTORS_LOG):
                    remove(self.path / name)
                shutil.rmtree(self.path / layout.WANDB, ignore_errors=True)
                with suppress(OSError):
                    self.path.rmdir()
        finally:
            self._lock.close()

    def append_round(self, row: RoundRow) -> None:
        """Appends a finished round's row, which is on disk when this returns."""
        append(self.path / layout.ROUNDS, row.to_json_line(), is_synced=True)

    def read_rounds(self) -> list[RoundRow]:
        """Reads the rows, except damaged lines.

        Raises:
            RunDirectoryError: The file cannot be read, or a row is not of this version.
        """
        path = self.path / layout.ROUNDS
        try:
            lines = whole_lines(path)
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from None
        return [
            RoundRow.from_json_line(line) for line in lines if "round_index" in json_object(line)
        ]

    def keep_rounds(self, rows: Sequence[RoundRow]) -> None:
        """Replaces the rows by these, and removes damaged lines with the others."""
        path = self.path / layout.ROUNDS
        if path.exists():
            write_atomically(path, b"".join(row.to_json_line() for row in rows))
