"""Keeps the run's files in a bucket, from which a replacement learner continues; they outlive the deployment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.failures import AWS_ERRORS, code_of
from runtime.errors import RunError
from runtime.money.model import UPLOAD_INTERVAL_S
from runtime.records import layout
from runtime.records.files import TEMPORARY, make_directory, remove, write_atomically

_TRIES = 5
_REPLACED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey")
"""S3's error codes if the object to be replaced has changed or is missing."""


class ResultsError(RunError):
    """The bucket cannot be read or written."""


class ResultsBucket:
    """Mirrors a run's directory under a prefix, all but its ledger, which has a place of its own.

    Changes follow at most every `UPLOAD_INTERVAL_S` seconds: if the instance vanishes, its replacement repeats the
    rounds since then, with the same results if they are synchronous. Each write names the object that it replaces, so a
    learner that has lost the run cannot replace what its successor wrote. One that is refused asks who owns the run.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        directory: Path,
        check_owner: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the upload; sends no request yet.

        Args:
            client: S3 client.
            prefix: Prefix of all keys; ends in ``/``.
            check_owner: Raises `LostRunError` if another learner continues the run.
            clock: Monotonic seconds.
        """
        self._client, self._bucket, self._prefix = client, bucket, prefix
        self._directory, self._check_owner, self._clock = directory, check_owner, clock
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._tags: dict[str, str] = {}
        self._uploaded_at_s = -UPLOAD_INTERVAL_S

    def download(self, ledger: str) -> None:
        """Replaces the directory's contents with the run's, if there is one.

        Args:
            ledger: Contents of its ledger; empty if there is none.

        Raises:
            ResultsError: The bucket cannot be read, or an unforeseen error occurred: another attempt may succeed, and a
                deployment must not end before it trains.
        """
        try:
            self._download(ledger)
        except RunError:
            raise
        except Exception as error:
            raise ResultsError(
                f"the results bucket {self._bucket}: the run cannot be put into {self._directory}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _download(self, ledger: str) -> None:
        for path in self._directory.rglob(f"*{TEMPORARY}"):
            # Left by a process killed while writing.
            if layout.RUN_FILE.fullmatch(self._name(path).removesuffix(TEMPORARY)):
                remove(path)
        names = set(self._names())
        if not any(
            name.endswith(".json") and layout.CHECKPOINT_FILE.fullmatch(name) for name in names
        ):
            # Rows without their checkpoint; these rounds are repeated.
            names.discard(layout.ROUNDS)
        if not ledger and not names:
            return
        for path in self._files():
            remove(path)
        remove(self._directory / layout.LEDGER)
        if ledger:
            write_atomically(self._directory / layout.LEDGER, ledger.encode())
        # Rows after checkpoints; an uploading learner uses the opposite order.
        for name in sorted(names, key=_upload_order, reverse=True):
            path = self._directory / name
            make_directory(path.parent)
            response = self._call(self._client.get_object, Key=self._prefix + name)
            self._tags[name] = response["ETag"]
            write_atomically(
                path, self._call(lambda Bucket, body: body.read(), body=response["Body"])
            )
            self._uploaded[name] = _stamp(path)
        self._drop_checkpoints_ahead()

    def round_finished(self) -> None:
        """Uploads changes, if the last upload is long enough ago; raises like `upload`."""
        if self._clock() - self._uploaded_at_s >= UPLOAD_INTERVAL_S:
            self.upload()

    def upload(self) -> None:
        """Uploads all changes.

        Raises:
            LostRunError: Another learner continues the run; nothing was uploaded.
            LedgerError: Whether one does is not known.
            ResultsError: The bucket cannot be read or written.
        """
        self._check_owner()
        changed = [
            path for path in self._files() if self._uploaded.get(self._name(path)) != _stamp(path)
        ]
        for path in sorted(changed, key=lambda path: _upload_order(self._name(path))):
            stamp = _stamp(path)
            self._replace(self._name(path), path.read_bytes())
            self._uploaded[self._name(path)] = stamp
        for name in [name for name in self._uploaded if layout.CHECKPOINT_FILE.fullmatch(name)]:
            if not (self._directory / name).exists():
                self._call(self._client.delete_object, Key=self._prefix + name)
                del self._uploaded[name]
                self._tags.pop(name, None)
        self._uploaded_at_s = self._clock()

    def clear(self, folder: str) -> str:
        """Empties a folder under the run's prefix that is not part of its directory.

        Args:
            folder: Its name; ends in ``/``.

        Returns:
            Its location, ``s3://BUCKET/PREFIX/``.

        Raises:
            ResultsError: The bucket cannot be written.
        """
        for found in self._list(folder):
            self._call(self._client.delete_object, Key=found["Key"])
        return f"s3://{self._bucket}/{self._prefix}{folder}"

    def _replace(self, name: str, data: bytes) -> None:
        """Replaces a file with the version that this learner knows."""
        for _ in range(_TRIES):
            tag = self._tags.get(name)
            condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
            try:
                written = self._call(
                    self._client.put_object, Key=self._prefix + name, Body=data, **condition
                )
            except ResultsError as error:
                if code_of(error.__cause__) not in _REPLACED:
                    raise
                # Written by a learner that has lost the run, or by us if the answer to an earlier try was lost.
                self._check_owner()
                self._tags[name] = self._names().get(name, "")
            else:
                self._tags[name] = written["ETag"]
                return
        raise ResultsError(f"the results bucket {self._bucket}: {name} is refused again and again")

    def _drop_checkpoints_ahead(self) -> None:
        """Removes from the directory checkpoints without a row, left by a learner that had lost the run.

        If that would be all of them, rows are missing, and people should know.
        """
        path = self._directory / layout.ROUNDS
        rounds = len(path.read_bytes().splitlines()) if path.exists() else 0
        names = [self._name(file) for file in self._files()]
        found = [match for match in map(layout.CHECKPOINT_FILE.fullmatch, names) if match]
        ahead = [match[0] for match in found if int(match[1]) > rounds]
        for name in ahead if len(ahead) < len(found) else []:
            remove(self._directory / name)

    def _names(self) -> dict[str, str]:
        """Returns the run's files in the bucket, with their tags."""
        names = {one["Key"].removeprefix(self._prefix): one["ETag"] for one in self._list("")}
        return {name: tag for name, tag in names.items() if _is_kept(name)}

    def _list(self, folder: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(
            lambda **where: list_all(self._client, "list_objects_v2", "Contents", **where),
            Prefix=self._prefix + folder,
        )
        return found

    def _files(self) -> list[Path]:
        """Returns the files in the directory that the bucket keeps."""
        return [
            path
            for path in sorted(self._directory.rglob("*"))
            if path.is_file() and _is_kept(self._name(path))
        ]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(Bucket=self._bucket, **arguments)
        except AWS_ERRORS as error:
            raise ResultsError(f"the results bucket {self._bucket}: {error}") from error


def _is_kept(name: str) -> bool:
    return bool(layout.RUN_FILE.fullmatch(name)) and name != layout.LEDGER


def _upload_order(name: str) -> tuple[int, bool]:
    """Sorts uploads: rows before the following checkpoint, then its JSON, which makes it valid, then the best policy.

    The checkpoint also has that policy: the bucket's copy may be too old, but is always known to a checkpoint. The
    summary is last, because its presence means that the run has ended, and nothing more is uploaded.
    """
    last = {layout.BEST_POLICY: 2, layout.SUMMARY: 3}
    return last.get(name, int(bool(layout.CHECKPOINT_FILE.fullmatch(name)))), name.endswith(".json")


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
