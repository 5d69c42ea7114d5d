"""A run's directory, written so that no crash loses a finished round."""

from __future__ import annotations

import fcntl
import math
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
from runtime.records.layout import RunFiles
from runtime.records.rows import RoundRow


class RunDirectory(RunFiles):
    """The files of one run; only one process at a time holds them."""

    def __init__(self, path: Path, *, is_pool: bool = False) -> None:
        """Creates the directory if it is missing, and locks it.

        Args:
            path: Where it is.
            is_pool: Whether a pool asks for it, in Python.

        Raises:
            RunDirectoryError: It cannot be created or written, or another process trains in it.
        """
        super().__init__(path)
        here = f"out = {path}" if is_pool else f"--out {path}"
        try:
            self._is_new = not path.exists()
            make_directory(path)
            self._lock = open_to_write(path / layout.LOCK)
        except OSError as error:
            raise RunDirectoryError(
                f"{here}: cannot be written: {error.strerror or error}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            reason = f"cannot be locked: {error.strerror}"
            if isinstance(error, BlockingIOError):
                reason = "a pool is open there" if is_pool else "another process is training there"
            raise RunDirectoryError(f"{here}: {reason}") from None

    @property
    def holds_run(self) -> bool:
        """Returns whether there are files of a run."""
        return any(path.exists() for path in (self.config_path, self.rounds_path)) or any(
            self.checkpoints_path.glob("round_*.json")
        )

    def close(self) -> None:
        """Releases the directory, and removes it if nothing was ever started in it."""
        try:
            if self._is_new and not self.holds_run:
                for path in (
                    self.path / layout.LOCK,
                    self.events_path,
                    self.ledger_path,
                    self.actors_log_path,
                ):
                    remove(path)
                with suppress(OSError):
                    self.path.rmdir()
        finally:
            self._lock.close()

    def append_round(self, row: RoundRow) -> None:
        """Appends a finished round's row, which is on disk when this returns."""
        append(self.rounds_path, row.to_json_line(), is_synced=True)

    def check_rounds(self, round_index: int) -> None:
        """Checks that the rows belong to one run whose newest sound checkpoint is of ``round_index``.

        Raises:
            RunDirectoryError: The rows up to there are not rounds 1 to ``round_index``, once each and in order; or
                there is no checkpoint, but there are more rows than a kill before the first one can leave.
        """
        found = [index for index, _ in self._lines()]
        left = found[round_index:]
        if (
            found[:round_index] != list(range(1, round_index + 1))
            or any(index <= round_index for index in left)
            or (round_index == 0 and len(left) > 1)
        ):
            raise RunDirectoryError(
                f"{self.rounds_path} has {len(found)} rounds, up to {max(found, default=0)}, but the newest sound "
                f"checkpoint is of round {round_index}: something of this run was lost or mixed with another; nothing "
                "was changed; put the lost files back, or begin anew with another --out"
            )

    def cut_rounds_back(self, round_index: int) -> None:
        """Removes all rows after that round, and damaged lines."""
        if self.rounds_path.exists():
            kept = (line for index, line in self._lines() if index <= round_index)
            write_atomically(self.rounds_path, b"".join(kept))

    def read_rounds(self, round_index: float = math.inf) -> list[RoundRow]:
        """Reads the rows up to a round, all by default, except damaged lines.

        Raises:
            RunDirectoryError: A row is not of this version.
        """
        return [
            RoundRow.from_json_line(line) for index, line in self._lines() if index <= round_index
        ]

    def _lines(self) -> list[tuple[int, bytes]]:
        """Returns each row's round and line."""
        return [
            (row["round_index"], line)
            for line in whole_lines(self.rounds_path)
            if isinstance((row := json_object(line)).get("round_index"), int)
        ]
