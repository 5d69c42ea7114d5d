"""A disk that shows what a process would leave if it died, or that has no more room, at any operation that changes it.

`Disk` replaces the functions of `os` that change files below one folder. It counts a run's operations there. A test
first learns which operations there are, and then makes each one the last, or makes it fail.

A killed process does nothing more: no ``finally`` cleans up. It leaves the state before its next operation, or in the
middle of one. `Disk.watched` shows each such state of an undisturbed run.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

NEEDS_ROOM = ("create", "write", "fsync", "mkdir")
"""Operations that a full disk refuses."""
_REPLACED = (
    "open",
    "write",
    "fsync",
    "replace",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "ftruncate",
    "link",
    "symlink",
)
_SEEN = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
)
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_RUNTIME = str(Path(__file__).resolve().parents[2] / "runtime")
_LAYER = os.path.join(_RUNTIME, "records", "files.py")


class Disk:
    """One process's disk, below one folder.

    Attributes:
        operations: Attempted changes: each operation's name and its file's.
        strangers: Files that code in `runtime` other than `runtime.records.files` opened to write, removed or renamed.
    """

    def __init__(self, folder: Path) -> None:
        """Never fails."""
        self._folder = os.path.realpath(folder)
        self._open: dict[int, tuple[tuple[int, int], str]] = {}
        self._seen: Callable[[str], None] = lambda moment: None
        self._full_from, self._full_until = sys.maxsize, 0
        self.operations: list[str] = []
        self.strangers: set[str] = set()

    def watched(self, seen: Callable[[str], None]) -> Disk:
        """Calls ``seen`` whenever a kill would leave a different state than before."""
        self._seen = seen
        return self

    def filled(self, at: int, *, operations: int = sys.maxsize) -> Disk:
        """Has no room for ``operations`` operations from number ``at`` on, counted from 0."""
        self._full_from, self._full_until = at, at + operations
        return self

    def reach(self, operation: str, file: str) -> None:
        """Counts an operation that is about to begin.

        Raises:
            OSError: The disk is full.
        """
        number = len(self.operations)
        self.operations.append(f"{operation} {file}")
        self._seen(f"before {number}, {operation} {file}")
        if self._full_from <= number < self._full_until and operation in NEEDS_ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Replaces the real functions below its folder within a ``with`` block."""
        real = {name: getattr(os, name) for name in _REPLACED}
        before, _Watch.disk = _Watch.disk, self
        try:
            with mock.patch.multiple(
                os, **{name: self._in_place_of(name, real) for name in _REPLACED}
            ):
                yield
        finally:
            _Watch.disk = before

    def _in_place_of(self, name: str, real: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        def with_path(path: Any, *arguments: Any, **options: Any) -> Any:
            if (file := self.name_of(path)) is not None:
                self.reach(name, file)
            return real[name](path, *arguments, **options)

        def with_descriptor(descriptor: int, *arguments: Any) -> Any:
            if (file := self._opened(descriptor)) is not None:
                self.reach(
                    "sync directory" if os.path.isdir(f"/dev/fd/{descriptor}") else name, file
                )
                if name == "fsync":
                    # The kernel keeps written data after a kill, on the disk or not.
                    return None
            return real[name](descriptor, *arguments)

        def write(descriptor: int, data: Any) -> int:
            if (file := self._opened(descriptor)) is None:
                return int(real["write"](descriptor, data))
            number, half = len(self.operations), len(data) // 2
            try:
                self.reach("write", file)
            except OSError:
                if number == self._full_from and half:
                    # There is room for half of it.
                    return int(real["write"](descriptor, data[:half]))
                raise
            written = int(real["write"](descriptor, data[:half])) if half else 0
            self._seen(f"amid {number}, write {file}")
            return written + int(real["write"](descriptor, data[half:]))

        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            file = self.name_of(path)
            if file is not None and flags & os.O_CREAT and not os.path.lexists(path):
                self.reach("create", file)
            descriptor = int(real["open"](path, flags, *arguments, **options))
            if file is not None:
                self._open[descriptor] = _identity(descriptor), file
            return descriptor

        return {
            "open": opened,
            "write": write,
            "fsync": with_descriptor,
            "ftruncate": with_descriptor,
        }.get(name, with_path)

    def name_of(self, path: Any) -> str | None:
        """Returns a file's name below the folder; None if it is elsewhere."""
        if not isinstance(path, str | os.PathLike):
            return None
        folder, name = os.path.split(os.path.abspath(path))
        inside = os.path.relpath(os.path.join(os.path.realpath(folder), name), self._folder)
        return None if inside.startswith("..") else inside

    def _opened(self, descriptor: int) -> str | None:
        identity, file = self._open.get(descriptor, (None, ""))
        return file if identity is not None and identity == _identity(descriptor) else None


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class _Watch:
    """Sees every file that this process opens, renames or removes, by whichever function."""

    disk: Disk | None = None

    @classmethod
    def see(cls, event: str, arguments: tuple[Any, ...]) -> None:
        disk = cls.disk
        if (
            disk is None
            or event not in _SEEN
            or (event == "open" and not (arguments[2] or 0) & _CHANGING)
        ):
            return
        for path in arguments[: 1 if event == "open" else 2]:
            if (file := disk.name_of(path)) is not None and not _is_by_the_layer(sys._getframe(1)):
                disk.strangers.add(file)


def _is_by_the_layer(frame: FrameType | None) -> bool:
    """Whether the innermost frame from `runtime` belongs to `runtime.records.files`."""
    while frame is not None and not frame.f_code.co_filename.startswith(_RUNTIME):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == _LAYER


sys.addaudithook(_Watch.see)
