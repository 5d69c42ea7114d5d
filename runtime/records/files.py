"""Writing files so that a crash at any instant leaves them whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the contents of ``path``: afterwards, and after any crash, it has the old or the new ones, whole.

    Raises:
        OSError: The file cannot be written; the old contents are still there.
    """
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


def read_regular(path: Path) -> bytes:
    """Returns what a file holds; a pipe or a device is not waited for.

    Raises:
        OSError: It is no regular file, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path.name} is not a regular file")
    return path.read_bytes()


def append(path: Path, line: bytes, *, is_synced: bool) -> None:
    """Adds a line to a file, which is created if it is missing.

    Args:
        line: With its line break.
        is_synced: Whether the line is on disk when this returns.

    Raises:
        OSError: The file cannot be written.
    """
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        if is_synced:
            os.fsync(file.fileno())


def to_json(value: Any) -> bytes:
    """Returns indented JSON with a line break at its end.

    Raises:
        ValueError: A number is not finite.
    """
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
