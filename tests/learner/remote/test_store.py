"""Stores of a remote learner: a folder, a bucket and a server keep the same contract."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import boto3
import moto
import pytest
from botocore.stub import Stubber

from runtime.learner.remote.bucket import BucketStore
from runtime.learner.remote.places import open_store, server_place
from runtime.learner.remote.store import FolderStore, Store, StoreError


@pytest.fixture(params=["folder", "bucket", "server"])
def store(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server_url: str,
    run_id: str,
) -> Iterator[Store]:
    if request.param == "server":
        yield open_store(server_place(server_url, run_id, ttl_s=60))
        return
    if request.param == "folder":
        yield open_store(str(tmp_path / "updates"))
        return
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
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


@pytest.mark.parametrize("name", ["", "../ledger.json", "a/b", ".hidden", "a" * 129])
def test_other_names_are_refused(store: Store, name: str) -> None:
    for attempt in (
        lambda: store.put(name, b""),
        lambda: store.get(name),
        lambda: store.delete([name]),
    ):
        with pytest.raises(StoreError, match="is no name of an object"):
            attempt()


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="batch-1 cannot be kept"):
        FolderStore(tmp_path / "file").put("batch-1", b"")
    with pytest.raises(StoreError, match="batch-1 cannot be read"):
        FolderStore(tmp_path / "file").get("batch-1")
    with pytest.raises(StoreError, match="batch-1 cannot be read"):
        open_store(server_place(f"unix://{tmp_path / 'none'}", "a-run", ttl_s=60)).get("batch-1")


def test_what_s3_forbids_is_missing_if_it_is_not_listed_and_read_if_it_came_meanwhile() -> None:
    client = boto3.client(
        "s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    store, key = BucketStore(client, "results", "a-run/updates/"), "a-run/updates/batch-1"
    get = {"Bucket": "results", "Key": key}

    def forbid(*listed: str) -> None:
        s3.add_client_error("get_object", "AccessDenied", http_status_code=403, expected_params=get)
        s3.add_response(
            "list_objects_v2",
            {"Contents": [{"Key": one} for one in listed]} if listed else {},
            {"Bucket": "results", "Prefix": key},
        )

    with Stubber(client) as s3:
        forbid()
        assert store.get("batch-1") is None
        forbid(f"{key}0")
        assert store.get("batch-1") is None
        forbid(key)
        s3.add_response("get_object", {"Body": io.BytesIO(b"late")}, get)
        assert store.get("batch-1") == b"late"
        forbid(key)
        s3.add_client_error("get_object", "AccessDenied")
        with pytest.raises(StoreError, match="batch-1 cannot be read.*AccessDenied"):
            store.get("batch-1")
        s3.add_client_error("get_object", "AccessDenied")
        s3.add_client_error("list_objects_v2", "AccessDenied")
        with pytest.raises(StoreError, match="batch-1 cannot be looked for"):
            store.get("batch-1")
        s3.add_response("delete_objects", {"Errors": [{"Key": key, "Code": "AccessDenied"}]})
        with pytest.raises(StoreError, match="batch-1 cannot be removed: AccessDenied"):
            store.delete(["batch-1"])
        s3.assert_no_pending_responses()
