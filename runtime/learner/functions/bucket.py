"""The store of a learner function in a bucket of S3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runtime.aws.failures import AWS_ERRORS, ClientError, code_of
from runtime.learner.functions.store import StoreError, failing

_DELETED_AT_ONCE = 1000
"""S3's maximum for one request."""


class BucketStore:
    """A `Store` in a bucket of S3. Conditional writes let the first of several writers win."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """Takes a part of a bucket, without a request.

        Args:
            client: A client of S3.
            prefix: Prefix of all keys; ends in ``/``.
        """
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._place = f"s3://{bucket}/{prefix}"

    def put(self, name: str, data: bytes) -> bool:
        """Keeps ``data`` under a new name."""
        key = {"Bucket": self._bucket, "Key": self._prefix + name}
        with failing(self._place + name, *AWS_ERRORS):
            try:
                self._client.put_object(**key, Body=data, IfNoneMatch="*")
            except ClientError as error:
                # In a conflict, another writer is writing it right now, and may fail: that is an error to try again.
                if code_of(error) != "PreconditionFailed":
                    raise
                return False
        return True

    def get(self, name: str) -> bytes | None:
        """Returns the object, or None if it does not exist."""
        key = self._prefix + name
        with failing(self._place + name, *AWS_ERRORS):
            # S3 answers "forbidden" for a missing object if the role may list one prefix only. So look first.
            listing = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key)
            if not any(listed["Key"] == key for listed in listing.get("Contents", [])):
                return None
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
            return data

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects that exist."""
        keys = [{"Key": self._prefix + name} for name in names]
        with failing(self._place, *AWS_ERRORS):
            for first in range(0, len(keys), _DELETED_AT_ONCE):
                some = {"Objects": keys[first : first + _DELETED_AT_ONCE], "Quiet": True}
                answer = self._client.delete_objects(Bucket=self._bucket, Delete=some)
                if refused := answer.get("Errors"):
                    raise StoreError(f"{refused[0]['Key']} cannot be removed: {refused[0]['Code']}")
