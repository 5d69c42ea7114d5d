"""Where a learner elsewhere finds its state and its batches, and leaves its results: a folder, or a bucket of S3.

The first one who puts an object under a name decides what it holds. So of several invocations for one update, one
alone makes the next policy version.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from runtime.errors import RunError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,127}")
_BUCKET_SCHEME = "s3://"
_TRIES = 5
_PAUSE_S = 0.1


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
            self._path.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._path, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                # Unlike a renaming, this refuses a name that is taken.
                with suppress(FileExistsError):
                    os.link(temporary, self._path / _checked(name))
                    return True
            finally:
                os.unlink(temporary)
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be kept: {error}") from error
        return False

    def get(self, name: str) -> bytes | None:
        """Returns the object; None if there is none of that name."""
        try:
            return (self._path / _checked(name)).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._path}: {name} cannot be read: {error}") from error

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there."""
        try:
            for name in names:
                (self._path / _checked(name)).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path}: an object cannot be removed: {error}") from error


class BucketStore:
    """A `Store` in a bucket of S3: the first of several writers wins by a conditional write."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """Takes a part of a bucket; asks nothing yet.

        Args:
            client: Of S3.
            prefix: What all keys begin with; ends in ``/``.
        """
        self._client, self._bucket, self._prefix = client, bucket, prefix

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a name that is new."""
        from runtime.aws.failures import AWS_ERRORS, code_of

        for _ in range(_TRIES):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + _checked(name), Body=data,
                                        IfNoneMatch="*")
            except AWS_ERRORS as error:
                if code_of(error) == "PreconditionFailed":
                    return False
                if code_of(error) != "ConditionalRequestConflict":
                    raise self._failed("kept", name, error) from error
                # Somebody else is writing it right now.
                time.sleep(_PAUSE_S)
            else:
                return True
        raise StoreError(f"s3://{self._bucket}/{self._prefix}{name} cannot be kept: others write it all the time")

    def get(self, name: str) -> bytes | None:
        """Returns the object; None if there is none of that name."""
        from runtime.aws.failures import AWS_ERRORS, code_of

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + _checked(name))
            data: bytes = answer["Body"].read()
        except AWS_ERRORS as error:
            # S3 forbids a missing object to whoever may list one prefix only.
            if code_of(error) == "NoSuchKey" or (code_of(error) == "AccessDenied" and not self._is_listed(name)):
                return None
            raise self._failed("read", name, error) from error
        return data

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, if they are there."""
        from runtime.aws.failures import AWS_ERRORS

        for name in names:
            try:
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + _checked(name))
            except AWS_ERRORS as error:
                raise self._failed("removed", name, error) from error

    def _is_listed(self, name: str) -> bool:
        from runtime.aws.failures import AWS_ERRORS

        try:
            found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + name)
        except AWS_ERRORS as error:
            raise self._failed("looked for", name, error) from error
        return any(one["Key"] == self._prefix + name for one in found.get("Contents", []))

    def _failed(self, what: str, name: str, error: Exception) -> StoreError:
        return StoreError(f"s3://{self._bucket}/{self._prefix}{name} cannot be {what}: {error}")


def open_store(place: str) -> Store:
    """Opens the store at a place: ``s3://BUCKET/PREFIX/``, or the path of a folder."""
    if not place.startswith(_BUCKET_SCHEME):
        return FolderStore(Path(place))
    from runtime.aws.clients import clients

    bucket, _, prefix = place.removeprefix(_BUCKET_SCHEME).partition("/")
    return BucketStore(clients()("s3"), bucket, prefix)


def batch_name(token: str, policy_version: int) -> str:
    """Names the batch that updates this version."""
    return f"{token}-batch-{policy_version}"


def state_name(token: str, policy_version: int) -> str:
    """Names the state of a version that no function has made."""
    return f"{token}-state-{policy_version}"


def result_name(token: str, policy_version: int) -> str:
    """Names the result of the update that makes this version."""
    return f"{token}-result-{policy_version}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r:.80} is no name of an object: letters, digits and dashes are allowed")
    return name
