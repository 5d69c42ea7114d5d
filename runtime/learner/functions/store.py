"""The store of a remote learner for states, batches and results, in a folder or a bucket.

The first object under a name remains. So if several invocations make the same update, exactly one of them determines
the next policy version. A slow or repeated one computes the same bits and loses the race.

A killed session leaves the objects of its last update behind. Here the next session removes them, in AWS the bucket's
lifecycle does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from runtime.errors import RunError
from runtime.records.files import make_directory, naming_file


class StoreError(RunError):
    """The store cannot be read or written."""


class Store(Protocol):
    """Objects by name. Each is put once. Names consist of letters, digits and dashes."""

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data``. Returns False, and changes nothing, if the name is taken.

        Raises:
            StoreError: ``data`` cannot be kept.
        """

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist.

        Raises:
            StoreError: The object cannot be read.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist.

        Raises:
            StoreError: The objects cannot be removed.
        """


class FolderStore:
    """A `Store` in a local folder."""

    def __init__(self, path: Path) -> None:
        """Takes a folder, which the first `put` creates."""
        self._path = path

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a new name."""
        with failing(self._path / name, OSError), naming_file(self._path):
            make_directory(self._path)
            descriptor, temporary = tempfile.mkstemp(dir=self._path, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                # Unlike renaming, this refuses a name that is taken.
                with suppress(FileExistsError):
                    os.link(temporary, self._path / name)
                    return True
            finally:
                os.unlink(temporary)
        return False

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist."""
        with failing(self._path / name, OSError), suppress(FileNotFoundError):
            return (self._path / name).read_bytes()
        return None

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist."""
        with failing(self._path, OSError):
            for name in names:
                (self._path / name).unlink(missing_ok=True)


@contextmanager
def failing(name: object, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors of a store into a StoreError that names the object or the store."""
    try:
        yield
    except errors as error:
        raise StoreError(f"{name} cannot be read or written: {error}") from error


def object_name(token: str, what: str, *numbers: int) -> str:
    """Returns the name of an object.

    Args:
        token: Prefix of the session.
        what: ``state`` of a version that no function has made, ``batch`` that updates a version, ``result`` of the
            update that makes a version, ``weights`` of a version for its players; of Stellaris: ``samples`` of an
            update, ``policy`` after some steps, ``gradient`` of an update's job.
        numbers: Which of them.
    """
    return "-".join([token, what, *map(str, numbers)])
