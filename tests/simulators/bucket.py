"""One S3 bucket in memory, with S3's conditional writes."""

from __future__ import annotations

import hashlib
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

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        IfMatch: str = "",
        IfNoneMatch: str = "",
    ) -> dict[str, Any]:
        self._before("put_object", Key)
        found = self._objects.get(Key)
        if IfMatch and found is None:
            raise _refused("NoSuchKey", 404)
        if (IfMatch and found is not None and _tag(found) != IfMatch) or (
            IfNoneMatch and found is not None
        ):
            raise _refused("PreconditionFailed", 412)
        self._objects[Key] = Body
        return {"ETag": _tag(Body)}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._before("get_object", Key)
        if Key not in self._objects:
            raise _refused("NoSuchKey", 404)
        data = self._objects[Key]
        return {"ETag": _tag(data), "Body": io.BytesIO(data)}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        self._before("delete_object", Key)
        self._objects.pop(Key, None)
        return {}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        self._before("list_objects_v2", Prefix)
        found = [
            {"Key": key, "ETag": _tag(data)}
            for key, data in sorted(self._objects.items())
            if key.startswith(Prefix)
        ]
        yield {"Contents": found} if found else {}


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _refused(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "S3",
    )
