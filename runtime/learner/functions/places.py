"""Opens the store of a remote learner. Its place is one string for a folder, a bucket or a server."""

from __future__ import annotations

import os
from pathlib import Path

from lambda_actor.cache import TrajectoryCache
from runtime.learner.functions.store import CacheStore, FolderStore, Store

_BUCKET_SCHEME = "s3://"
_SERVER_SCHEMES = ("redis://", "rediss://", "unix://")


def server_place(url: str, run_id: str, *, ttl_s: int) -> str:
    """Returns the place of a store on a server.

    Args:
        url: Address of the server, without credentials. These are in ACTOR_CACHE_USERNAME and ACTOR_CACHE_PASSWORD.
        run_id: Prefix of its keys.
        ttl_s: Seconds after which keys expire that were not removed.
    """
    return f"{url}#{run_id}#{ttl_s}"


def open_store(place: str) -> Store:
    """Opens the store at a place: ``s3://BUCKET/PREFIX/``, a result of `server_place`, or the path of a folder."""
    if place.startswith(_SERVER_SCHEMES):
        url, run_id, ttl_s = place.rsplit("#", 2)
        return CacheStore(
            TrajectoryCache(
                url,
                run_id,
                ttl_s=int(ttl_s),
                username=os.environ.get("ACTOR_CACHE_USERNAME"),
                password=os.environ.get("ACTOR_CACHE_PASSWORD"),
            )
        )
    if not place.startswith(_BUCKET_SCHEME):
        return FolderStore(Path(place))
    # Import boto3 only for a bucket.
    from runtime.aws.clients import clients
    from runtime.learner.functions.bucket import BucketStore

    bucket, _, prefix = place.removeprefix(_BUCKET_SCHEME).partition("/")
    return BucketStore(clients()("s3"), bucket, prefix)
