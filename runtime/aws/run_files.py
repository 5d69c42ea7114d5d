"""A run's files in the results bucket, from which another learner continues, or a person on any machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.aws.asking import ask, list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, code_of
from runtime.aws.stacks import find_stack, resources_of
from runtime.errors import OperationError, RunError
from runtime.names import RESULTS_STACK
from runtime.records import layout
from runtime.records.files import (
    TEMPORARY,
    json_object,
    make_directory,
    remove,
    write_atomically,
)

_TAIL_BYTES = 2**18
_MISSING = ("NoSuchKey", "InvalidRange")
"""S3's error codes if there is no such object, or an empty one."""


class ResultsError(RunError):
    """The bucket cannot be read or written."""


class RunFiles:
    """The files of one run in the bucket.

    Attributes:
        prefix: Prefix of their keys; ends in ``/``.
    """

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """Names the run; sends no request yet.

        Args:
            client: S3 client.
            prefix: Prefix of all keys; ends in ``/``.
        """
        self._client = client
        self._bucket = bucket
        self.prefix = prefix

    @property
    def key(self) -> str:
        """The run's key in the ledger."""
        return self.prefix.rstrip("/")

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self.prefix}"

    def changed_at_s(self) -> float:
        """Returns the time of the last change, in seconds since 1970; 0 if it has no file. Raises `ResultsError`."""
        return max((one["LastModified"].timestamp() for one in self.objects()), default=0.0)

    def objects(self, folder: str = "") -> list[dict[str, Any]]:
        """Returns what S3 lists of the run, or of a folder of it; raises `ResultsError`."""
        found: list[dict[str, Any]] = self._call(
            lambda **where: list_all(self._client, "list_objects_v2", "Contents", **where),
            Prefix=self.prefix + folder,
        )
        return found

    def names(self) -> set[str]:
        """Returns the names of the run's files that a directory has, too; raises `ResultsError`."""
        return {
            name for one in self.objects() if is_kept(name := one["Key"].removeprefix(self.prefix))
        }

    def read(self, name: str, **part: str) -> bytes:
        """Returns a file's contents; raises `ResultsError`.

        Args:
            part: ``Range``, to read only a part.
        """
        response = self._call(self._client.get_object, Key=self.prefix + name, **part)
        data: bytes = self._call(lambda Bucket, body: body.read(), body=response["Body"])
        return data

    def write(self, name: str, data: bytes) -> None:
        """Replaces or makes a file; raises `ResultsError`."""
        self._call(self._client.put_object, Key=self.prefix + name, Body=data)

    def delete(self, name: str) -> None:
        """Deletes a file, if it exists; raises `ResultsError`."""
        self._call(self._client.delete_object, Key=self.prefix + name)

    def text(self, name: str) -> str:
        """Returns a file's text, or the end of a long one; empty if there is none. Raises `ResultsError`."""
        try:
            return self.read(name, Range=f"bytes=-{_TAIL_BYTES}").decode(errors="replace")
        except ResultsError as error:
            if code_of(error.__cause__) in _MISSING:
                return ""
            raise

    def rows(self) -> list[dict[str, Any]]:
        """Returns the run's last rows; raises `ResultsError`."""
        lines = self.text(layout.ROUNDS).splitlines()
        return [row for line in lines if (row := json_object(line))]

    def download(self, directory: Path, ledger: str) -> set[str]:
        """Replaces a directory's contents with the run's, if there is one.

        Args:
            directory: The run's directory.
            ledger: Contents of its ledger, which the bucket does not keep; empty if there is none.

        Returns:
            Names of the downloaded files.

        Raises:
            ResultsError: The bucket cannot be read.
            OSError: The directory cannot be written.
        """
        for path in directory.rglob(f"*{TEMPORARY}"):
            # Left by a process killed while writing.
            if layout.RUN_FILE.fullmatch(_name(directory, path).removesuffix(TEMPORARY)):
                remove(path)
        names = self.names()
        if not any(
            name.endswith(".json") and layout.CHECKPOINT_FILE.fullmatch(name) for name in names
        ):
            # Rows without their checkpoint; these rounds are repeated.
            names.discard(layout.ROUNDS)
        if not ledger and not names:
            return set()
        for path in files_in(directory):
            remove(path)
        remove(directory / layout.LEDGER)
        if ledger:
            write_atomically(directory / layout.LEDGER, ledger.encode())
        # Rows after checkpoints; an uploading learner uses the opposite order.
        for name in sorted(names, key=upload_order, reverse=True):
            path = directory / name
            make_directory(path.parent)
            write_atomically(path, self.read(name))
        _drop_checkpoints_ahead(directory)
        return names

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(Bucket=self._bucket, **arguments)
        except AWS_ERRORS as error:
            raise ResultsError(f"the results bucket {self.url}: {error}") from error


def find_runs(client: Client, experiment: str) -> list[RunFiles]:
    """Returns an experiment's runs in the bucket, by name.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Name of the experiment.

    Raises:
        OperationError: There is no bucket, or no run.
        AccountError: AWS cannot be reached.
    """
    formation, store = client("cloudformation"), client("s3")
    if ask(lambda: find_stack(formation, RESULTS_STACK)) is None:
        raise OperationError(
            f"no stack {RESULTS_STACK} in this account and region: nothing was ever deployed here, or it "
            "was destroyed (its bucket is then still there)"
        )
    resources = ask(lambda: resources_of(formation, RESULTS_STACK))
    kinds = {one["ResourceType"]: str(one["PhysicalResourceId"]) for one in resources}
    bucket = kinds["AWS::S3::Bucket"]
    found = ask(
        lambda: list_all(
            store,
            "list_objects_v2",
            "CommonPrefixes",
            Bucket=bucket,
            Prefix=f"{experiment}/",
            Delimiter="/",
        )
    )
    if not found:
        raise OperationError(f"the bucket has no run of {experiment}")
    return [RunFiles(store, bucket, one["Prefix"]) for one in found]


def is_kept(name: str) -> bool:
    """Returns whether the bucket keeps a file of a run's directory: all but its ledger, which has an item."""
    return bool(layout.RUN_FILE.fullmatch(name)) and name != layout.LEDGER


def files_in(directory: Path) -> list[Path]:
    """Returns the files in a directory that the bucket keeps."""
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and is_kept(_name(directory, path))
    ]


def upload_order(name: str) -> tuple[int, bool]:
    """Sorts uploads: rows before the following checkpoint, then its JSON, which makes it valid, then the best policy.

    The checkpoint also has that policy: the bucket's copy may be too old, but is always known to a checkpoint. The
    summary is last, because its presence means that the run has ended, and nothing more is uploaded.
    """
    last = {layout.BEST_POLICY: 2, layout.SUMMARY: 3}
    return last.get(name, int(bool(layout.CHECKPOINT_FILE.fullmatch(name)))), name.endswith(".json")


def _drop_checkpoints_ahead(directory: Path) -> None:
    """Removes checkpoints without a row, left by a learner that had lost the run.

    If that would be all of them, rows are missing, and people should know.
    """
    path = directory / layout.ROUNDS
    rounds = len(path.read_bytes().splitlines()) if path.exists() else 0
    names = [_name(directory, file) for file in files_in(directory)]
    found = [match for match in map(layout.CHECKPOINT_FILE.fullmatch, names) if match]
    ahead = [match[0] for match in found if int(match[1]) > rounds]
    for name in ahead if len(ahead) < len(found) else []:
        remove(directory / name)


def _name(directory: Path, path: Path) -> str:
    return path.relative_to(directory).as_posix()
