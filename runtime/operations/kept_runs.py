"""What the results bucket keeps of an experiment's runs, read from anywhere; nothing in the bucket is changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of
from runtime.aws.stacks import find_stack
from runtime.errors import RunError
from runtime.names import RESULTS_STACK, run_key
from runtime.records import layout
from runtime.records.files import to_json, write_atomically
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_by_records

_TAIL_BYTES = 2**18
"""Of a file of lines, so much is read from its end."""
_NAME = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")
"""Names that lead nowhere but into the run's directory; learners run code of the experiment's environment."""
_NOT_RESULTS = ("cache-credential.json", "launches/")
_MARKER = ".download.json"
_CHECKPOINTS = f"{layout.CHECKPOINTS}/"
_MD5 = re.compile(r"[0-9a-f]{32}")
_TRIES = 5
_NOTHING = ("NoSuchKey", "PreconditionFailed", "InvalidRange")
"""There is no such object, none with that tag, or an empty one."""


class KeptError(RunError):
    """What the bucket keeps is not there, cannot be read, or cannot be put where it was asked for."""


@dataclass(frozen=True)
class KeptFile:
    """One object of a run.

    Attributes:
        name: Below the run's prefix.
        tag: S3's ETag, without quotes: the MD5 of what was uploaded in one piece.
        changed_at_s: Seconds since 1970.
    """

    name: str
    size: int
    tag: str
    changed_at_s: float


class KeptRun:
    """One run in the bucket."""

    def __init__(self, client: Any, bucket: str, experiment: str, run: str) -> None:
        """Names the run; reads nothing yet.

        Args:
            client: Of S3.
        """
        self._client, self._bucket, self._prefix = client, bucket, run_key(experiment, run) + "/"
        self.run = run

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def files(self) -> dict[str, KeptFile]:
        """By name.

        Raises:
            AccountError: The bucket cannot be read.
        """
        found = pages_of(self._client, "list_objects_v2", "Contents", Bucket=self._bucket, Prefix=self._prefix)
        names = {one["Key"].removeprefix(self._prefix): one for one in found}
        return {name: KeptFile(name, one["Size"], one["ETag"].strip('"'), one["LastModified"].timestamp())
                for name, one in names.items()}

    def read(self, file: KeptFile) -> bytes | None:
        """Its contents as they were listed; None if it was replaced or deleted since.

        Raises:
            AccountError: It cannot be read.
            KeptError: What came is not what the bucket has.
        """
        data = self._get(file.name, IfMatch=f'"{file.tag}"')
        if data is not None and _MD5.fullmatch(file.tag) and _md5(data) != file.tag:
            raise KeptError(f"{self.url}{file.name} came damaged; try again")
        return data

    def text(self, name: str) -> str:
        """The file, or the end of a long one; empty where it is not there.

        Raises:
            AccountError: It cannot be read.
        """
        return (self._get(name, Range=f"bytes=-{_TAIL_BYTES}") or b"").decode(errors="replace")

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The last whole lines of a file of JSON lines.

        Raises:
            AccountError: It cannot be read.
        """
        return [row for line in self.text(name).splitlines() if isinstance(row := _json(line), dict)]

    def first_line(self, name: str) -> dict[str, Any]:
        """The first line of a file of JSON lines; empty where there is none.

        Raises:
            AccountError: It cannot be read.
        """
        data = self._get(name, Range=f"bytes=0-{_TAIL_BYTES - 1}") or b""
        found = _json(data.decode(errors="replace").partition("\n")[0])
        return found if isinstance(found, dict) else {}

    def record(self, name: str) -> dict[str, Any]:
        """A JSON file; empty where it is not there, or is none.

        Raises:
            AccountError: It cannot be read.
        """
        found = _json(self.text(name))
        return found if isinstance(found, dict) else {}

    def _get(self, name: str, **options: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **options)
                data: bytes = response["Body"].read()
                return data
            except ClientError as error:
                if code_of(error) in _NOTHING:
                    return None
                raise

        return ask(read)


def find_bucket(client: Client) -> str:
    """Name of the results bucket.

    Raises:
        AccountError: CloudFormation cannot be asked.
        KeptError: There is none.
    """
    formation = client("cloudformation")
    if ask(lambda: find_stack(formation, RESULTS_STACK)) is None:
        raise KeptError(f"no stack {RESULTS_STACK} in this account and region: nothing was ever deployed here, or it "
                        "was destroyed (its bucket is then still there)")
    buckets = [str(one["PhysicalResourceId"])
               for one in pages_of(formation, "list_stack_resources", "StackResourceSummaries", StackName=RESULTS_STACK)
               if one["ResourceType"] == "AWS::S3::Bucket" and one.get("PhysicalResourceId")]
    if not buckets:
        raise KeptError(f"the stack {RESULTS_STACK} has no bucket yet")
    return buckets[0]


def find_runs(client: Client, bucket: str, experiment: str) -> list[KeptRun]:
    """The experiment's runs in the bucket, by name.

    Raises:
        AccountError: The bucket cannot be read.
    """
    store = client("s3")
    found = pages_of(store, "list_objects_v2", "CommonPrefixes", Bucket=bucket, Prefix=f"{experiment}/", Delimiter="/")
    return [KeptRun(store, bucket, experiment, one["Prefix"].split("/")[1]) for one in found]


def summarise(run: KeptRun) -> dict[str, Any]:
    """Returns what a run came to.

    ``run``, ``rounds``, ``evaluation_return``, ``spent_usd``, ``budget_usd``, ``ended`` and ``changed_at_s``; None or
    empty if the bucket does not tell.

    Raises:
        AccountError: The bucket cannot be read.
    """
    rows, files = run.rows(layout.ROUNDS), run.files()
    summary, ended, refused = run.record(layout.SUMMARY), run.record(layout.ENDED), run.record(layout.REFUSED)
    returns = [row["evaluation_return_mean"] for row in rows if row.get("evaluation_return_mean") is not None]
    last = rows[-1] if rows else {}
    reason = ended.get("stop_reason") or summary.get("stop_reason") or ("refused" if refused else "")
    error = ended.get("error") or summary.get("error") or refused.get("error") or ""
    return {"run": run.run, "rounds": last.get("round_index", 0), "last_round": last,
            "evaluation_return": returns[-1] if returns else summary.get("evaluation_return_mean"),
            "spent_usd": spent_usd(run, rows), "budget_usd": summary.get("budget_usd"),
            "ended": f"{reason}: {error}" if error else reason,
            "changed_at_s": max((file.changed_at_s for file in files.values()), default=0.0)}


def spent_usd(run: KeptRun, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """What the run's own records say that it has spent; None if none of them does.

    Args:
        run: In the bucket.
        rows: Its last rows.

    Raises:
        AccountError: The bucket cannot be read.
    """
    spent = spent_by_records(ledger=run.record(layout.LEDGER), rows=rows, summary=run.record(layout.SUMMARY))
    return None if spent is None else spent.spent_usd


def download(run: KeptRun, out: Path, report: Callable[[str], None]) -> None:
    """Puts the run into a directory, from where it can be evaluated and gone on with.

    What is there already stays as it is; a download that was interrupted goes on where it was.

    Args:
        report: Is told of each file.

    Raises:
        AccountError: The bucket cannot be read.
        KeptError: The directory holds another run, or this one and it was changed since; or a learner replaced its
            files faster than they came.
        RunDirectoryError: The directory cannot be written, or somebody trains in it.
    """
    directory = RunDirectory(out)
    try:
        for _ in range(_TRIES):
            if _Download(run, directory, report).is_complete():
                return
    finally:
        directory.close()
    raise KeptError(f"{run.url} changes faster than it can be downloaded; try again later")


class _Download:
    """One attempt, as the bucket is now."""

    def __init__(self, run: KeptRun, directory: RunDirectory, report: Callable[[str], None]) -> None:
        self._run, self._out, self._report = run, directory.path, report
        self._marker = directory.path / _MARKER
        self._had = self._read_marker(directory)
        self._files = {name: file for name, file in run.files().items() if not name.startswith(_NOT_RESULTS)}

    def is_complete(self) -> bool:
        """Downloads; False where the run changed meanwhile."""
        self._check_unchanged()
        self._remember()
        for name in sorted(self._files, key=_order):
            if not _NAME.fullmatch(name):
                self._report(f"passed over {name!r}, which is no name of a run's file")
            elif not self._fetch(self._files[name]):
                return False
        for name in set(self._had) - set(self._files):
            # An old checkpoint, which the learner deleted since.
            (self._out / name).unlink(missing_ok=True)
            del self._had[name]
        self._remember()
        return True

    def _fetch(self, file: KeptFile) -> bool:
        path = self._out / file.name
        if _digest(path) == file.tag and path.stat().st_size == file.size:
            self._had[file.name] = file.tag
            return True
        data = self._run.read(file)
        if data is None:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
        self._had[file.name] = _md5(data)
        self._remember()
        self._report(f"{file.size:>12,} bytes  {path}")
        return True

    def _check_unchanged(self) -> None:
        """Checks that nothing here was changed since it was downloaded.

        Raises:
            KeptError: Something here is neither what was downloaded before nor what the bucket has.
        """
        changed = [name for name, known in self._had.items() if (found := _digest(self._out / name))
                   and found != known and (name not in self._files or found != self._files[name].tag)]
        if changed:
            raise KeptError(f"--out {self._out}: {', '.join(sorted(changed)[:3])} was changed since it was downloaded, "
                            "as by going on with the run here; name another directory")

    def _read_marker(self, directory: RunDirectory) -> dict[str, str]:
        """Reads which files were downloaded before.

        Raises:
            KeptError: The directory holds a run that is not this one.
        """
        found = _json(self._marker.read_text()) if self._marker.exists() else None
        if isinstance(found, dict) and found.get("source") == self._run.url:
            return dict(found["files"])
        if found is not None or directory.holds_run:
            raise KeptError(f"--out {self._out}: holds another run; name another directory")
        return {}

    def _remember(self) -> None:
        write_atomically(self._marker, to_json({"source": self._run.url, "files": self._had}))


def _order(name: str) -> tuple[int, str]:
    """Checkpoints before the rows that lead to them, and money last: a learner uploads the other way round."""
    return (0 if name.startswith(_CHECKPOINTS) else 2 if name == layout.LEDGER else 1), name


def _digest(path: Path) -> str:
    """Empty where there is no such file."""
    return _md5(path.read_bytes()) if path.is_file() else ""


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _json(text: str) -> Any:
    """What the text says; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
