"""Reads an experiment's runs in the results bucket, from any machine; changes nothing in the bucket."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of
from runtime.aws.stacks import find_stack, present, resources_of
from runtime.errors import OperationError, RunError
from runtime.names import RESULTS_STACK, run_key
from runtime.records import layout
from runtime.records.files import json_object
from runtime.records.spent import spent_by_records

_TAIL_BYTES = 2**18
"""Bytes to read from the end of a file of lines."""
_MD5 = re.compile(r"[0-9a-f]{32}")
_NOTHING = ("NoSuchKey", "PreconditionFailed", "InvalidRange")
"""There is no such object, none with that tag, or an empty one."""


class KeptError(RunError):
    """The bucket's files are missing or unreadable, or cannot be stored at the requested place."""


@dataclass(frozen=True)
class KeptFile:
    """One file of a run in the bucket, as listed.

    Attributes:
        name: Below the run's prefix.
        size: In bytes.
        tag: S3's ETag, without quotes: the MD5 of a file that was uploaded in one piece.
        changed_at_s: Seconds since 1970.
    """

    name: str
    size: int
    tag: str
    changed_at_s: float


class KeptRun:
    """One run in the bucket.

    Attributes:
        run: Its name.
    """

    def __init__(self, client: Any, bucket: str, experiment: str, run: str) -> None:
        """Names the run without reading it.

        Args:
            client: S3 client.
            bucket: Name of the results bucket.
            experiment: Name of the experiment.
            run: Name of the run.
        """
        self._client, self._bucket, self._prefix = client, bucket, run_key(experiment, run) + "/"
        self.run = run

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def files(self) -> dict[str, KeptFile]:
        """Lists the run's files, by name.

        Raises:
            AccountError: The bucket cannot be read.
        """
        found = pages_of(
            self._client, "list_objects_v2", "Contents", Bucket=self._bucket, Prefix=self._prefix
        )
        names = {one["Key"].removeprefix(self._prefix): one for one in found}
        return {
            name: KeptFile(
                name, one["Size"], one["ETag"].strip('"'), one["LastModified"].timestamp()
            )
            for name, one in names.items()
        }

    def read(self, file: KeptFile) -> bytes | None:
        """Returns a file's contents as listed; None if it was replaced or deleted since.

        Raises:
            AccountError: It cannot be read.
            KeptError: The received data differs from the bucket's.
        """
        data = self._get(file.name, IfMatch=f'"{file.tag}"')
        if data is not None and _MD5.fullmatch(file.tag) and md5_of(data) != file.tag:
            raise KeptError(f"{self.url}{file.name} came damaged; try again")
        return data

    def text(self, name: str) -> str:
        """Returns a file's text, or the end of a long one; empty if it does not exist.

        Raises:
            AccountError: It cannot be read.
        """
        return (self._get(name, Range=f"bytes=-{_TAIL_BYTES}") or b"").decode(errors="replace")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Returns the last whole lines of a file of JSON lines.

        Raises:
            AccountError: It cannot be read.
        """
        return [row for line in self.text(name).splitlines() if (row := json_object(line))]

    def record(self, name: str) -> dict[str, Any]:
        """Returns a JSON file; empty if it does not exist or is not JSON.

        Raises:
            AccountError: It cannot be read.
        """
        return json_object(self.text(name))

    def _get(self, name: str, **options: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                response = self._client.get_object(
                    Bucket=self._bucket, Key=self._prefix + name, **options
                )
                data: bytes = response["Body"].read()
                return data
            except ClientError as error:
                if code_of(error) in _NOTHING:
                    return None
                raise

        return ask(read)


def find_bucket(client: Client) -> str:
    """Returns the name of the results bucket.

    Raises:
        AccountError: CloudFormation cannot be reached.
        KeptError: There is none.
    """
    formation = client("cloudformation")
    if ask(lambda: find_stack(formation, RESULTS_STACK)) is None:
        raise KeptError(
            f"no stack {RESULTS_STACK} in this account and region: nothing was ever deployed here, or it "
            "was destroyed (its bucket is then still there)"
        )
    buckets = present(ask(lambda: resources_of(formation, RESULTS_STACK)), "AWS::S3::Bucket")
    if not buckets:
        raise KeptError(f"the stack {RESULTS_STACK} has no bucket yet")
    return buckets[0]


def find_runs(client: Client, bucket: str, experiment: str) -> list[KeptRun]:
    """Returns the experiment's runs in the bucket, by name.

    Raises:
        AccountError: The bucket cannot be read.
    """
    store = client("s3")
    found = pages_of(
        store,
        "list_objects_v2",
        "CommonPrefixes",
        Bucket=bucket,
        Prefix=f"{experiment}/",
        Delimiter="/",
    )
    return [KeptRun(store, bucket, experiment, one["Prefix"].split("/")[1]) for one in found]


def choose_run(runs: list[KeptRun], name: str | None, experiment: str) -> KeptRun | None:
    """Returns the run of that name, or the only one; None if there are several and no name is given.

    Raises:
        OperationError: There is none.
    """
    if not runs:
        raise OperationError(f"the bucket has no run of {experiment}")
    if name is None:
        return runs[0] if len(runs) == 1 else None
    chosen = next((run for run in runs if run.run == name), None)
    if chosen is None:
        raise OperationError(
            f"--run {name}: the bucket has no such run of {experiment}; there are: "
            f"{', '.join(run.run for run in runs)}"
        )
    return chosen


def changed_at_s(files: Mapping[str, KeptFile]) -> float:
    """Returns the time of the last change to a run's files, in seconds since 1970; 0 if there are none."""
    return max((file.changed_at_s for file in files.values()), default=0.0)


def newest_first(runs: Iterable[KeptRun]) -> list[tuple[KeptRun, dict[str, KeptFile]]]:
    """Returns runs with their files, the most recently changed first.

    Raises:
        AccountError: The bucket cannot be read.
    """
    return sorted(((run, run.files()) for run in runs), key=lambda pair: -changed_at_s(pair[1]))


def spent_usd(run: KeptRun, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the run's cost according to its own records; None if they do not have it.

    Args:
        run: In the bucket.
        rows: Its last rows.

    Raises:
        AccountError: The bucket cannot be read.
    """
    spent = spent_by_records(ledger={}, rows=rows, summary=run.record(layout.SUMMARY))
    return None if spent is None else spent.spent_usd


def md5_of(data: bytes) -> str:
    """Returns the MD5 of some bytes in hexadecimal digits, S3's tag for a file uploaded in one piece."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
