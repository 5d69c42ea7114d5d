"""Keeps the run's directory in a bucket, from which a replacement learner continues; it outlives the deployment."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
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


class SupersededError(ResultsError):
    """Another learner continues this run, so this one must not spend any more."""


class ResultsBucket:
    """Mirrors a run's directory under a prefix.

    The ledger is uploaded before money is reserved. Everything else follows at most every `UPLOAD_INTERVAL_S` seconds:
    if the instance vanishes, its replacement repeats the rounds since then, with the same results if they are
    synchronous. `download` takes the run over: later writes by older learners are refused, so that only the newest
    continues. Each write names the object that it replaces. A write that was under way may still succeed, and is then
    replaced by the learner that owns the ledger.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the upload; sends no request yet.

        Args:
            client: S3 client.
            prefix: Prefix of all keys; ends in ``/``.
            clock: Monotonic seconds.
        """
        self._client, self._bucket, self._prefix, self._directory = (
            client,
            bucket,
            prefix,
            directory,
        )
        self._clock = clock
        self._ledger_tag: str | None = None
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._tags: dict[str, str] = {}
        self._uploaded_at_s = -UPLOAD_INTERVAL_S
        self._writer = uuid.uuid4().hex
        self._promised_usd = 0.0
        self._was_idle = True
        self.is_superseded = False

    def download(self) -> bool:
        """Replaces the directory's contents with the run in the bucket; returns False if the bucket has none.

        Raises:
            SupersededError: Another learner keeps writing.
            ResultsError: The bucket cannot be read or written, or an unforeseen error occurred: another attempt may
                succeed, and a deployment must not end before it trains.
        """
        try:
            return self._download()
        except RunError:
            raise
        except Exception as error:
            raise ResultsError(
                f"the results bucket {self._bucket}: the run cannot be put into {self._directory}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _download(self) -> bool:
        for path in self._directory.rglob(f"*{TEMPORARY}"):
            # Left by a process killed while writing.
            if layout.RUN_FILE.fullmatch(self._name(path).removesuffix(TEMPORARY)):
                remove(path)
        ledger = self._take_over()
        names = set(self._names())
        if not any(
            name.endswith(".json") and layout.CHECKPOINT_FILE.fullmatch(name) for name in names
        ):
            # Rows without their checkpoint; these rounds are repeated.
            names.discard(layout.ROUNDS)
        if ledger is None and not names:
            return False
        for path in self._files():
            remove(path)
        if ledger is not None:
            write_atomically(self._directory / layout.LEDGER, ledger)
        # Rows after checkpoints; an uploading learner uses the opposite order.
        for name in sorted(names - {layout.LEDGER}, key=_upload_order, reverse=True):
            path = self._directory / name
            make_directory(path.parent)
            self._tags[name], _, data = self._get(name)
            write_atomically(path, data)
            self._uploaded[name] = _stamp(path)
        self._drop_checkpoints_ahead()
        return True

    def save_ledger(self, ledger: bytes, *, promised_usd: float, is_idle: bool) -> bool:
        """Keeps the ledger if it has new reservations, or larger ones than the bucket's.

        Returns:
            Whether it was uploaded.

        Args:
            promised_usd: Total spent or reserved.
            is_idle: Whether nothing is reserved, so that the next reservation is new.

        Raises:
            SupersededError: Another learner has written it since.
            ResultsError: The bucket cannot be written.
        """
        is_new = promised_usd > self._promised_usd or (self._was_idle and not is_idle)
        if is_new:
            self._put_ledger(ledger)
            self._promised_usd = promised_usd
        self._was_idle = is_idle
        return is_new

    def round_finished(self) -> None:
        """Uploads changes, if the last upload is long enough ago.

        Raises:
            SupersededError: Another learner continues the run; nothing was uploaded.
            ResultsError: The bucket cannot be read or written.
        """
        if self._clock() - self._uploaded_at_s >= UPLOAD_INTERVAL_S:
            self._upload()

    def finish(self) -> None:
        """Uploads all changes, the ledger first; nothing if another learner continues the run.

        Raises: See `round_finished`.
        """
        ledger = self._directory / layout.LEDGER
        if self.is_superseded or not ledger.exists():
            return
        self._put_ledger(ledger.read_bytes())
        self._upload()

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

    def _upload(self) -> None:
        self._check_ledger()
        changed = [
            path for path in self._files() if self._uploaded.get(self._name(path)) != _stamp(path)
        ]
        for path in sorted(changed, key=lambda path: _upload_order(self._name(path))):
            stamp = _stamp(path)
            self._replace(self._name(path), path.read_bytes())
            self._uploaded[self._name(path)] = stamp
        self._delete_old_checkpoints()
        self._uploaded_at_s = self._clock()

    def _replace(self, name: str, data: bytes) -> None:
        """Replaces a file with the version that this learner knows.

        Raises:
            SupersededError: Another learner wrote it, and owns the ledger.
            ResultsError: The bucket cannot be written.
        """
        for _ in range(_TRIES):
            if tag := self._put_over(self._tags.get(name), name, data):
                self._tags[name] = tag
                return
            # Written by a superseded learner, or by us if the answer to an earlier try was lost.
            self._check_ledger()
            self._tags[name] = self._names().get(name, "")
        raise ResultsError(f"the results bucket {self._bucket}: {name} is refused again and again")

    def _check_ledger(self) -> None:
        """Checks that this learner still owns the ledger.

        Raises:
            SupersededError: It is another learner's.
        """
        if (
            self._call(self._client.head_object, Key=self._prefix + layout.LEDGER)["ETag"]
            != self._ledger_tag
        ):
            raise self._give_way()

    def _drop_checkpoints_ahead(self) -> None:
        """Removes from the directory checkpoints without a row, left by a superseded learner.

        If that would be all of them, rows are missing, and people should know.
        """
        path = self._directory / layout.ROUNDS
        rounds = len(path.read_bytes().splitlines()) if path.exists() else 0
        found = [
            match
            for match in map(layout.CHECKPOINT_FILE.fullmatch, map(self._name, self._files()))
            if match
        ]
        ahead = [match[0] for match in found if int(match[1]) > rounds]
        for name in ahead if len(ahead) < len(found) else []:
            remove(self._directory / name)

    def _delete_old_checkpoints(self) -> None:
        for name in [name for name in self._uploaded if layout.CHECKPOINT_FILE.fullmatch(name)]:
            if not (self._directory / name).exists():
                self._call(self._client.delete_object, Key=self._prefix + name)
                del self._uploaded[name]
                self._tags.pop(name, None)

    def _take_over(self) -> bytes | None:
        """Returns the ledger, rewritten so that no earlier learner can replace it; None if there is none."""
        for _ in range(_TRIES):
            self.is_superseded = False
            self._ledger_tag, _, ledger = self._find_ledger()
            if self._ledger_tag is None:
                return None
            with suppress(SupersededError):
                # Other bytes with the same meaning, so that the previous writer's expected object is gone.
                self._put_ledger(ledger + b"\n")
                return ledger
        raise self._give_way()

    def _put_ledger(self, ledger: bytes) -> None:
        """Puts the ledger into the bucket.

        Raises:
            SupersededError: The object there is neither the one that this learner found nor one that it wrote.
        """
        for _ in range(_TRIES):
            if new_tag := self._put_over(
                self._ledger_tag, layout.LEDGER, ledger, Metadata={"writer": self._writer}
            ):
                self._ledger_tag = new_tag
                return
            tag, writer, _ = self._find_ledger()
            # Ours if the answer to an earlier try was lost.
            if tag != self._ledger_tag and writer != self._writer:
                raise self._give_way()
            self._ledger_tag = tag
        raise ResultsError(
            f"the results bucket {self._bucket}: the ledger is refused again and again"
        )

    def _put_over(self, tag: str | None, name: str, data: bytes, **more: Any) -> str | None:
        """Replaces the object with that tag, and returns the new tag; None if another object is there."""
        condition = {"IfMatch": tag} if tag else {"IfNoneMatch": "*"}
        try:
            new_tag: str = self._call(
                self._client.put_object, Key=self._prefix + name, Body=data, **more, **condition
            )["ETag"]
            return new_tag
        except ResultsError as error:
            if code_of(error.__cause__) in _REPLACED:
                return None
            raise

    def _find_ledger(self) -> tuple[str | None, str | None, bytes]:
        """Returns tag, writer and contents; None and empty if there is none."""
        # Listed first: S3 answers 403 for a missing object if the caller may list one prefix only.
        return self._get(layout.LEDGER) if layout.LEDGER in self._names() else (None, None, b"")

    def _give_way(self) -> SupersededError:
        self.is_superseded = True
        return SupersededError(
            "another learner continues this run: its ledger in the bucket is not the one that this "
            "learner wrote"
        )

    def _get(self, name: str) -> tuple[str, str | None, bytes]:
        """Returns tag, writer (if named) and contents."""

        def read(**where: str) -> tuple[str, str | None, bytes]:
            response = self._client.get_object(**where)
            return response["ETag"], response["Metadata"].get("writer"), response["Body"].read()

        found: tuple[str, str | None, bytes] = self._call(read, Key=self._prefix + name)
        return found

    def _names(self) -> dict[str, str]:
        """Returns the run's files in the bucket, with their tags."""
        return {
            name: found["ETag"]
            for found in self._list("")
            if layout.RUN_FILE.fullmatch(name := found["Key"].removeprefix(self._prefix))
        }

    def _list(self, folder: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(
            lambda **where: list_all(self._client, "list_objects_v2", "Contents", **where),
            Prefix=self._prefix + folder,
        )
        return found

    def _files(self) -> list[Path]:
        """Returns the run's own files in the directory, except the ledger and unfinished files."""
        return [
            path
            for path in sorted(self._directory.rglob("*"))
            if path.is_file()
            and layout.RUN_FILE.fullmatch(self._name(path))
            and self._name(path) != layout.LEDGER
        ]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(Bucket=self._bucket, **arguments)
        except AWS_ERRORS as error:
            raise ResultsError(f"the results bucket {self._bucket}: {error}") from error


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
