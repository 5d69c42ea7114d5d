"""The store of a remote learner for states, batches and results, in a folder, a bucket or on a server.

The first object under a name remains. So if several invocations make the same update, exactly one of them determines
the next policy version. A slow or repeated one computes the same bits and loses the race.

A killed session leaves the objects of its last update behind. Here the next session removes them, in AWS the bucket's
lifecycle does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import ActorError
from runtime.errors import RunError
from runtime.records.files import make_directory, naming_full_disk

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")


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
        try:
            with naming_full_disk(self._path):
                make_directory(self._path)
                descriptor, temporary = tempfile.mkstemp(dir=self._path, prefix=".")
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                    # Unlike renaming, this refuses a name that is taken.
                    with suppress(FileExistsError):
                        os.link(temporary, self._path / checked(name))
                        return True
                finally:
                    os.unlink(temporary)
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be kept: {error}") from error
        return False

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist."""
        try:
            return (self._path / checked(name)).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be read: {error}") from error

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist."""
        try:
            for name in names:
                (self._path / checked(name)).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path}: an object cannot be removed: {error}") from error


class CacheStore:
    """A `Store` on the server of a run's trajectory cache, among its keys."""

    def __init__(self, cache: TrajectoryCache) -> None:
        """Takes the run's cache, which connects on first use."""
        self._cache = cache

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a new name."""
        with _server_errors(name, "kept"):
            return self._cache.put_object(checked(name), data)

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist."""
        with _server_errors(name, "read"):
            return self._cache.get_object(checked(name))

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist."""
        with _server_errors("an object", "removed"):
            self._cache.delete_objects([checked(name) for name in names])


@contextmanager
def _server_errors(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except ActorError as error:
        raise StoreError(f"{name} cannot be {what}: {error}") from error


def batch_name(token: str, policy_version: int) -> str:
    """Returns the name of the batch that updates this version."""
    return f"{token}-batch-{policy_version}"


def state_name(token: str, policy_version: int) -> str:
    """Returns the name of the state of a version that no function has made."""
    return f"{token}-state-{policy_version}"


def weights_name(token: str, policy_version: int) -> str:
    """Returns the name of a version's policy, for its players."""
    return f"{token}-weights-{policy_version}"


def result_name(token: str, policy_version: int) -> str:
    """Returns the name of the result of the update that makes this version."""
    return f"{token}-result-{policy_version}"


def samples_name(token: str, update: int) -> str:
    """Returns the name of the samples for an update's gradients."""
    return f"{token}-samples-{update}"


def policy_name(token: str, version: int) -> str:
    """Returns the name of the parameter function's policy after this many aggregations."""
    return f"{token}-policy-{version}"


def gradient_name(token: str, update: int, job: int) -> str:
    """Returns the name of one of an update's gradients."""
    return f"{token}-gradient-{update}-{job}"


def checked(name: str) -> str:
    """Returns a name if it is valid for an object.

    Raises:
        StoreError: It is not.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r:.80} is no name of an object: letters, digits and dashes are allowed"
        )
    return name
