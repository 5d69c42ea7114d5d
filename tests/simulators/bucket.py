"""One S3 bucket in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError


class Bucket:
    """A client of S3 with a single bucket. Refuses what S3 refuses."""

    def __init__(self, objects: dict[str, bytes], before: Callable[[str, str], None]) -> None:
        """Args:
        objects: Contents by key; changes with the bucket.
        before: Called with the name and key of each call before it is carried out.
        """
        self._objects, self._before = objects, before

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> None:
        self._before("put_object", Key)
        self._objects[Key] = Body

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._before("get_object", Key)
        if Key not in self._objects:
            raise _refused("NoSuchKey", 404)
        return {"Body": io.BytesIO(self._objects[Key])}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._before("delete_object", Key)
        self._objects.pop(Key, None)
        return {}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        self._before("list_objects_v2", Prefix)
        found = [{"Key": key} for key in sorted(self._objects) if key.startswith(Prefix)]
        yield {"Contents": found} if found else {}


def _refused(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "S3",
    )
