"""Where a learner elsewhere finds its state and its batches, and leaves its results: a folder, a bucket, a server.

The first one who puts an object under a name decides what it holds. So of several invocations for one update, one
alone makes the next policy version.
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
    """Objects by name, each of which is put once; names are letters, digits and dashes."""

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data``; False, and nothing changed, if there is an object of that name.

        Raises:
            StoreError: It cannot be kept.
        """

    def get(self, name: str) -> bytes | None:
        """Returns the object; None if there is none of that name.

        Raises:
            StoreError: It cannot be read.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there.

        Raises:
            StoreError: They cannot be removed.
        """


class FolderStore:
    """A `Store` in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        """Takes a folder, which is made when something is put into it."""
        self._path = path

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a name that is new."""
        try:
            with naming_full_disk(self._path):
                make_directory(self._path)
                descriptor, temporary = tempfile.mkstemp(dir=self._path, prefix=".")
                try:
                    with os.fdopen(descriptor, "wb") as file:
                        file.write(data)
                    # Unlike a renaming, this refuses a name that is taken.
                    with suppress(FileExistsError):
                        os.link(temporary, self._path / checked(name))
                        return True
                finally:
                    os.unlink(temporary)
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be kept: {error}") from error
        return False

    def get(self, name: str) -> bytes | None:
        """Returns the object; None if there is none of that name."""
        try:
            return (self._path / checked(name)).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be read: {error}") from error

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there."""
        try:
            for name in names:
                (self._path / checked(name)).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path}: an object cannot be removed: {error}") from error


class CacheStore:
    """A `Store` among the keys of a run, on the server of its trajectory cache."""

    def __init__(self, cache: TrajectoryCache) -> None:
        """Takes the run's cache, which connects when it is first used."""
        self._cache = cache

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a name that is new."""
        with _server_errors(name, "kept"):
            return self._cache.put_object(checked(name), data)

    def get(self, name: str) -> bytes | None:
        """Returns the object; None if there is none of that name."""
        with _server_errors(name, "read"):
            return self._cache.get_object(checked(name))

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there."""
        with _server_errors("an object", "removed"):
            self._cache.delete_objects([checked(name) for name in names])


@contextmanager
def _server_errors(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except ActorError as error:
        raise StoreError(f"{name} cannot be {what}: {error}") from error


def batch_name(token: str, policy_version: int) -> str:
    """Names the batch that updates this version."""
    return f"{token}-batch-{policy_version}"


def state_name(token: str, policy_version: int) -> str:
    """Names the state of a version that no function has made."""
    return f"{token}-state-{policy_version}"


def weights_name(token: str, policy_version: int) -> str:
    """Names the policy of a version, for those that play it."""
    return f"{token}-weights-{policy_version}"


def result_name(token: str, policy_version: int) -> str:
    """Names the result of the update that makes this version."""
    return f"{token}-result-{policy_version}"


def samples_name(token: str, update: int) -> str:
    """The name of what an update's gradients are of."""
    return f"{token}-samples-{update}"


def policy_name(token: str, version: int) -> str:
    """The name of the policy that the parameter function has made with its aggregation of that number."""
    return f"{token}-policy-{version}"


def gradient_name(token: str, update: int, job: int) -> str:
    """The name of one of an update's gradients."""
    return f"{token}-gradient-{update}-{job}"


def checked(name: str) -> str:
    """Returns a name that can be an object's.

    Raises:
        StoreError: It cannot.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r:.80} is no name of an object: letters, digits and dashes are allowed")
    return name
