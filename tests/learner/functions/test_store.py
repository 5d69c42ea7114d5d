"""Stores of a remote learner: a folder and a bucket keep the same contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import moto
import pytest
from botocore.stub import Stubber

from runtime.learner.functions import open_store
from runtime.learner.functions.bucket import BucketStore
from runtime.learner.functions.store import Store, StoreError


@pytest.fixture(params=["folder", "bucket"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Store]:
    if request.param == "folder":
        yield open_store(str(tmp_path / "updates"))
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        boto3.client("s3").create_bucket(Bucket="results")
        yield open_store("s3://results/a-run/updates/")


def test_the_first_one_who_puts_an_object_decides_what_it_holds(store: Store) -> None:
    assert store.get("batch-1") is None
    assert store.put("batch-1", b"first")
    assert not store.put("batch-1", b"second")
    assert store.get("batch-1") == b"first"
    store.delete(["batch-1", "never-there"])
    assert store.get("batch-1") is None
    assert store.put("batch-1", b"third")


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="batch-1 cannot be read or written"):
        open_store(str(tmp_path / "file")).get("batch-1")


def test_what_s3_forbids_or_refuses_is_told() -> None:
    client = boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    store, key = BucketStore(client, "results", "a-run/updates/"), "a-run/updates/batch-1"
    listing = {"Bucket": "results", "Prefix": key}
    with Stubber(client) as s3:
        s3.add_response("list_objects_v2", {"Contents": [{"Key": f"{key}0"}]}, listing)
        assert store.get("batch-1") is None, "another object's name only begins so"
        s3.add_response("list_objects_v2", {"Contents": [{"Key": key}]}, listing)
        s3.add_client_error("get_object", "AccessDenied")
        with pytest.raises(StoreError, match="batch-1 cannot be read or written.*AccessDenied"):
            store.get("batch-1")
        s3.add_client_error("put_object", "PreconditionFailed")
        assert not store.put("batch-1", b"")
        s3.add_client_error("put_object", "ConditionalRequestConflict")
        with pytest.raises(StoreError, match="ConditionalRequestConflict"):
            store.put("batch-1", b"")
        s3.add_response("delete_objects", {"Errors": [{"Key": key, "Code": "AccessDenied"}]})
        with pytest.raises(StoreError, match="batch-1 cannot be removed: AccessDenied"):
            store.delete(["batch-1"])
        s3.assert_no_pending_responses()
