"""The run's directory, kept in a bucket: what a replaced learner continues from, and what outlives the deployment."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.exceptions

from runtime.cost.meter import UPLOAD_INTERVAL_S
from runtime.errors import RunError

_LEDGER = "ledger.json"
_ROUNDS = "rounds.jsonl"
_CHECKPOINT = re.compile(r"checkpoints/round_\d+\.(?:json|safetensors)")
_FILE = re.compile(rf"(?:rounds|events)\.jsonl|config\.yaml|{re.escape(_LEDGER)}|summary\.json|policy\.safetensors|"
                   rf"actors\.log|tensorboard/[\w.-]+|{_CHECKPOINT.pattern}")


class ResultsError(RunError):
    """The bucket cannot be read or written."""


class SupersededError(ResultsError):
    """Another learner continues this run: this one must not spend any more."""


class ResultsBucket:
    """Mirrors a run's directory under a prefix.

    The ledger is there before money is promised. Everything else follows at most every `UPLOAD_INTERVAL_S` seconds: a
    learner whose instance vanishes repeats the rounds since then, with the same results. Writing the ledger fails when
    somebody else wrote it since, so that of two learners of one run only the newer goes on.
    """

    def __init__(
        self, client: Any, bucket: str, prefix: str, directory: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        client: Of S3.
        prefix: What all keys begin with; ends in ``/``.
        clock: Monotonic seconds.
        """
        self._client, self._bucket, self._prefix, self._directory = client, bucket, prefix, directory
        self._clock = clock
        self._ledger_tag: str | None = None
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._uploaded_at_s = -UPLOAD_INTERVAL_S
        self._promised_usd = 0.0
        self.is_superseded = False

    def download(self) -> bool:
        """Puts what the bucket holds of the run in the place of what the directory holds; False where it has nothing.

        Raises:
            ResultsError: The bucket cannot be read.
        """
        names = self._names()
        if _LEDGER not in names:
            return False
        if not any(_CHECKPOINT.fullmatch(name) for name in names):
            # Rows whose checkpoint never came: those rounds are done again.
            names.discard(_ROUNDS)
        for path in self._files():
            path.unlink()
        for name in sorted(names):
            response = self._call(self._client.get_object, Key=self._prefix + name)
            if name == _LEDGER:
                self._ledger_tag = response["ETag"]
            path = self._directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(response["Body"].read())
            self._uploaded[name] = _stamp(path)
        return True

    def save_ledger(self, ledger: bytes, *, promised_usd: float, is_idle: bool) -> None:
        """Keeps the ledger, where it promises more than the one that the bucket has.

        Args:
            promised_usd: All that is spent or reserved.
            is_idle: Whether nothing is reserved: whatever is promised next is new.

        Raises:
            SupersededError: Another learner wrote it since.
            ResultsError: The bucket cannot be written.
        """
        if is_idle:
            self._promised_usd = 0.0
        elif promised_usd > self._promised_usd:
            self._put_ledger(ledger)
            self._promised_usd = promised_usd

    def round_finished(self) -> None:
        """Uploads what changed, if the last time is long enough ago."""
        if self._clock() - self._uploaded_at_s >= UPLOAD_INTERVAL_S:
            self._upload()

    def finish(self) -> None:
        """Uploads all that changed, the ledger too; nothing where another learner continues the run."""
        if self.is_superseded:
            return
        ledger = self._directory / _LEDGER
        if ledger.exists():
            self._put_ledger(ledger.read_bytes())
        self._upload()

    def put(self, name: str, data: bytes) -> None:
        """One object more, under the run's prefix."""
        self._call(self._client.put_object, Key=self._prefix + name, Body=data)

    def _upload(self) -> None:
        changed = [path for path in self._files() if self._uploaded.get(self._name(path)) != _stamp(path)]
        for path in sorted(changed, key=lambda path: _upload_order(self._name(path))):
            stamp = _stamp(path)
            self.put(self._name(path), path.read_bytes())
            self._uploaded[self._name(path)] = stamp
        self._delete_old_checkpoints()
        self._uploaded_at_s = self._clock()

    def _delete_old_checkpoints(self) -> None:
        for name in [name for name in self._uploaded if _CHECKPOINT.fullmatch(name)]:
            if not (self._directory / name).exists():
                self._call(self._client.delete_object, Key=self._prefix + name)
                del self._uploaded[name]

    def _put_ledger(self, ledger: bytes) -> None:
        condition = {"IfMatch": self._ledger_tag} if self._ledger_tag else {"IfNoneMatch": "*"}
        try:
            response = self._call(self._client.put_object, Key=self._prefix + _LEDGER, Body=ledger, **condition)
        except ResultsError as error:
            code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
            if code in ("PreconditionFailed", "ConditionalRequestConflict"):
                self.is_superseded = True
                raise SupersededError("another learner continues this run: its ledger in the bucket is not the one "
                                      "that this learner wrote") from None
            raise
        self._ledger_tag = response["ETag"]

    def _names(self) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        keys = self._call(lambda Bucket: [found["Key"] for page in pages for found in page.get("Contents", [])])
        return {name for key in keys if _FILE.fullmatch(name := key.removeprefix(self._prefix))}

    def _files(self) -> list[Path]:
        """The run's own files in the directory, but for the ledger's sake none that is half written."""
        return [path for path in sorted(self._directory.rglob("*")) if path.is_file()
                and _FILE.fullmatch(self._name(path)) and self._name(path) != _LEDGER]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._directory).as_posix()

    def _call(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return operation(Bucket=self._bucket, **arguments)
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise ResultsError(f"the results bucket {self._bucket}: {error}") from error


def _upload_order(name: str) -> tuple[bool, bool]:
    """Rows before the checkpoint that follows them; a checkpoint's JSON, which makes it exist, last."""
    return bool(_CHECKPOINT.fullmatch(name)), name.endswith(".json")


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
