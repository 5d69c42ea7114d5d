"""All writes into a run's directory: files remain whole after any crash."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from runtime.errors import RunError

TEMPORARY = ".tmp"
"""Suffix of incomplete files, which a killed process leaves behind."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the contents of ``path`` atomically: after any crash, it has the old or the new contents.

    Raises:
        OSError: The file cannot be written, so it has the old contents; or its directory cannot be synced, so that it
            has the new ones, but after a power failure perhaps the old.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    with naming_file(path):
        try:
            with open_to_write(temporary, os.O_TRUNC) as file:
                _write(file.fileno(), data)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            # On a full disk, the leftover would keep the disk full.
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_directory(path.parent)


def append(path: Path, data: bytes, *, is_synced: bool, is_line: bool = True) -> None:
    """Appends to a file, which is created if missing.

    Args:
        path: The file.
        data: A line with its line break, or other bytes.
        is_synced: Whether data must be on disk when this returns.
        is_line: Whether it is a line.

    Raises:
        OSError: The file cannot be written; its contents are unchanged.
    """
    with naming_file(path), open_to_write(path, os.O_APPEND) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        is_cut = is_line and size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        try:
            # Starts a new line after one that a crash cut off.
            _write(descriptor, b"\n" * is_cut + data)
            if is_synced:
                os.fsync(descriptor)
                if not size:
                    _sync_directory(path.parent)
        except OSError:
            os.ftruncate(descriptor, size)
            raise


def open_to_write(path: Path, flags: int = 0) -> IO[bytes]:
    """Opens a file without a buffer; creates it if it is missing, and does not change its contents.

    Args:
        path: The file.
        flags: More flags of `os.open`.

    Raises:
        OSError: It cannot be opened.
    """
    with naming_file(path):
        flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o666), "r+b", 0)


def check_place(option: str, path: Path, endings: Collection[str]) -> None:
    """Checks that a file can be written, before any work for it.

    Args:
        option: The option that names the file, such as ``--out``.
        path: The file.
        endings: Allowed suffixes of its name.

    Raises:
        RunError: It cannot be written.
    """
    is_file_name = path.suffix.lower() in endings and not path.is_dir()
    if not (is_file_name and path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise RunError(
            f"{option} {path}: allowed: a file whose name ends in {' | '.join(endings)}, in a folder that is there "
            "and can be written to"
        )


def remove(path: Path) -> None:
    """Removes a file, if it exists.

    Raises:
        OSError: It cannot be removed.
    """
    path.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Creates a directory and its parents, if missing.

    Raises:
        OSError: It cannot be created.
    """
    with naming_file(path):
        path.mkdir(parents=True, exist_ok=True)


def to_json(value: Any) -> bytes:
    """Returns indented JSON with a final line break.

    Raises:
        ValueError: A number is not finite.
    """
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def json_object(data: bytes | str) -> dict[str, Any]:
    """Reads a JSON object; empty if it is something else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a file's JSON object; empty if it is missing or damaged.

    Raises:
        OSError: It exists, but cannot be read.
    """
    return json_object(path.read_bytes()) if path.exists() else {}


def whole_lines(path: Path, start: int = 0) -> list[bytes]:
    """Returns a file's lines from a byte on, with their line breaks; without a last one that a crash cut off.

    Raises:
        OSError: It exists, but cannot be read.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        return [line for line in file if line.endswith(b"\n")]


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """A block that writes ``path``: an error names the file, and says where a disk is full and what to do.

    Raises:
        OSError: From the block.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror
        if error.errno in _FULL:
            folder = next(parent for parent in path.absolute().parents if parent.is_dir())
            free = shutil.disk_usage(folder).free
            reason = (
                f"the disk is full ({free:,} bytes are free in {folder}). Make room, and continue "
                "a run with --resume: it keeps all rounds on disk, and repeats one that could not be written"
            )
        raise OSError(error.errno, reason, str(path)) from None


def _sync_directory(path: Path) -> None:
    """Makes the names of new files survive a power failure."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _write(descriptor: int, data: bytes) -> None:
    """Writes all of it, in several pieces if necessary."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
