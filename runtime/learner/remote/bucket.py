"""The store of a remote learner in a bucket of S3."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from runtime.aws.failures import AWS_ERRORS, code_of
from runtime.learner.remote.store import StoreError, checked

_DELETED_AT_ONCE = 1000
"""S3's maximum for one request."""
_TRIES = 5
_PAUSE_S = 0.1


class BucketStore:
    """A `Store` in a bucket of S3. Conditional writes let the first of several writers win."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """Takes a part of a bucket, without a request.

        Args:
            client: A client of S3.
            prefix: Prefix of all keys; ends in ``/``.
        """
        self._client, self._bucket, self._prefix = client, bucket, prefix

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a new name."""
        for _ in range(_TRIES):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._prefix + checked(name),
                    Body=data,
                    IfNoneMatch="*",
                )
            except AWS_ERRORS as error:
                if code_of(error) == "PreconditionFailed":
                    return False
                if code_of(error) != "ConditionalRequestConflict":
                    raise self._failed("kept", name, error) from error
                # Another writer is writing it right now.
                time.sleep(_PAUSE_S)
            else:
                return True
        raise StoreError(
            f"s3://{self._bucket}/{self._prefix}{name} cannot be kept: others write it all the time"
        )

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist."""
        key = self._prefix + checked(name)
        is_listed = False
        while True:
            try:
                data: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            except AWS_ERRORS as error:
                if code_of(error) == "NoSuchKey":
                    return None
                if code_of(error) != "AccessDenied" or is_listed:
                    raise self._failed("read", name, error) from error
                # S3 answers "forbidden" for a missing object if the role may list one prefix only.
                is_listed = self._is_listed(name)
                if not is_listed:
                    return None
                # It appeared between the two requests, or is really forbidden. Ask again.
            else:
                return data

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist."""
        gone = [checked(name) for name in names]
        for some in (
            gone[first : first + _DELETED_AT_ONCE]
            for first in range(0, len(gone), _DELETED_AT_ONCE)
        ):
            try:
                answer = self._client.delete_objects(
                    Bucket=self._bucket,
                    Delete={
                        "Objects": [{"Key": self._prefix + name} for name in some],
                        "Quiet": True,
                    },
                )
            except AWS_ERRORS as error:
                raise self._failed("removed", some[0], error) from error
            if refused := answer.get("Errors"):
                raise StoreError(
                    f"s3://{self._bucket}/{refused[0]['Key']} cannot be removed: {refused[0]['Code']}"
                )

    def _is_listed(self, name: str) -> bool:
        try:
            found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + name)
        except AWS_ERRORS as error:
            raise self._failed("looked for", name, error) from error
        return any(one["Key"] == self._prefix + name for one in found.get("Contents", []))

    def _failed(self, what: str, name: str, error: Exception) -> StoreError:
        return StoreError(f"s3://{self._bucket}/{self._prefix}{name} cannot be {what}: {error}")
