"""Learners that are functions: one makes each update, or several compute gradients in parallel (Stellaris)."""

from __future__ import annotations

from pathlib import Path

from runtime.learner.functions.store import FolderStore, Store

_BUCKET = "s3://"


def open_store(address: str) -> Store:
    """Opens the store of a remote learner at ``s3://BUCKET/PREFIX/``, or in the folder of that path."""
    if not address.startswith(_BUCKET):
        return FolderStore(Path(address))
    # Import boto3 only for a bucket.
    from runtime.aws.clients import clients
    from runtime.learner.functions.bucket import BucketStore

    bucket, _, prefix = address.removeprefix(_BUCKET).partition("/")
    return BucketStore(clients()("s3"), bucket, prefix)
