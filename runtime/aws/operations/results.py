"""``python -m runtime results``: lists the runs in the bucket, and downloads one of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runtime.aws.operations.kept_runs import (
    KeptError,
    KeptFile,
    KeptRun,
    changed_at_s,
    md5_of,
    spent_usd,
)
from runtime.aws.operations.status import iso
from runtime.experiment.loading import UntrustedCodeError, load_experiment
from runtime.records import layout
from runtime.records.files import json_object, make_directory, remove, to_json, write_atomically
from runtime.records.rows import return_text
from runtime.records.run_directory import RunDirectory
from runtime.records.trust import environment_code
from runtime.show.report import try_to_write_report
from runtime.show.terminal import laid_out

_NOT_RESULTS = ("launches/", "boot/", layout.REPORT)
"""Not downloaded. A learner could have put any script into its report, so it is made again here."""
_CHECKPOINTS = f"{layout.CHECKPOINTS}/"
_TRIES = 5


def results_lines(runs: Iterable[KeptRun]) -> list[str]:
    """Returns a line for each run, for people.

    Raises:
        AccountError: The bucket cannot be read.
    """
    return laid_out({run.run: _facts(run) for run in runs})


def _facts(run: KeptRun) -> str:
    """Describes a run. Records that are damaged only mark this run."""
    try:
        rows, summary = run.rows(layout.ROUNDS), run.record(layout.SUMMARY)
        values = [
            row["evaluation_return_mean"]
            for row in rows
            if row.get("evaluation_return_mean") is not None
        ]
        index, usd = rows[-1].get("round_index", 0) if rows else 0, spent_usd(run, rows)
        if type(index) is not int:
            raise TypeError("its last round is not a whole number")
        spent = "unknown" if usd is None else f"${usd:.4f}"
        evaluated = return_text(values[-1] if values else summary.get("evaluation_return_mean"))
        ended = _ended(summary, run.record(layout.ENDED), run.record(layout.REFUSED))
        return (
            f"{index} rounds, evaluated {evaluated}, spent {spent}, last change {iso(changed_at_s(run.files()))}, "
            f"{ended or 'not ended, or unknown'}"
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        return f"damaged: {error}"


def _ended(summary: Mapping[str, Any], ended: Mapping[str, Any], refused: Mapping[str, Any]) -> str:
    """Returns why a run ended; empty if its records do not say.

    Raises:
        TypeError: The reason is not a text.
    """
    reason = (
        ended.get("stop_reason") or summary.get("stop_reason") or ("refused" if refused else "")
    )
    error = ended.get("error") or summary.get("error") or refused.get("error") or ""
    if not (isinstance(reason, str) and isinstance(error, str)):
        raise TypeError("its end's reason or error is not a text")
    return f"{reason}: {error}" if error else reason


def continue_lines(run: KeptRun, out: Path, experiment: str, file: Path | None) -> list[str]:
    """Returns instructions for a downloaded run: how to evaluate it, and how to continue it here or in AWS.

    Args:
        run: In the bucket.
        out: The directory that it was downloaded to.
        experiment: Name of the experiment.
        file: The experiment file that the user named; None if there is none.

    Raises:
        ExperimentError: The run's config.yaml is damaged.
    """
    here = shlex.quote(str(out))
    lines = (
        [f"evaluate it:      python -m runtime evaluate {here}"]
        if (out / layout.POLICY).exists()
        else []
    )
    config = out / layout.CONFIG
    if not config.exists():
        return [*lines, "it cannot be continued: it was never begun"]
    try:
        stored = load_experiment(config, is_of_run=True)
    except UntrustedCodeError as error:
        return [*lines, f"                  ({error})"]
    if environment_code(stored):
        lines.append(
            "                  (its environment is code, which a download does not bring: name your own with "
            "--environment ID, or --set environment.id=ID for train)"
        )
    if stored.callbacks:
        lines.append(
            "                  (its callbacks are also code: if you trust the run, --trust of train)"
        )
    source = str(file) if file else str(config)
    return [
        *lines,
        f"continue here:    python -m runtime train {shlex.quote(source)} --out {here} --resume "
        f"--set fleet.kind=local --set budget.usd={2 * stored.budget.usd:g}",
        "                  (dollars are then this machine's seconds at list prices; the bucket does not hear of it)",
        f"continue in AWS:  a larger budget.usd in {file or f'{experiment}.yaml'}, then make deploy "
        f'EXPERIMENT={file or f"{experiment}.yaml"} ARGS="--run {run.run}"',
    ]


def download(run: KeptRun, out: Path, report: Callable[[str], None]) -> None:
    """Downloads the run to a directory, from which it can be evaluated and continued.

    Existing files are kept, and an interrupted download is continued.

    Args:
        run: In the bucket.
        out: The directory, which is created if necessary.
        report: Receives a line for each file.

    Raises:
        AccountError: The bucket cannot be read.
        KeptError: The directory holds another run, or a changed copy of this one. Or a learner replaced its files
            faster than they could be downloaded.
        RunDirectoryError: The directory cannot be written, or a training uses it.
    """
    directory = RunDirectory(out)
    try:
        for _ in range(_TRIES):
            if _Download(run, directory, report).is_complete():
                if directory.holds_run and not try_to_write_report(out):
                    report(f"report:           {out / layout.REPORT}")
                return
    finally:
        directory.close()
    raise KeptError(f"{run.url} changes faster than it can be downloaded; try again later")


class _Download:
    """One attempt, with the bucket's current files."""

    def __init__(
        self, run: KeptRun, directory: RunDirectory, report: Callable[[str], None]
    ) -> None:
        self._run, self._out, self._report = run, directory.path, report
        self._marker = directory.path / layout.DOWNLOADED
        self._had = self._read_marker(directory)
        self._files = {
            name: file for name, file in run.files().items() if not name.startswith(_NOT_RESULTS)
        }

    def is_complete(self) -> bool:
        """Downloads; returns False if the run changed meanwhile."""
        self._check_unchanged()
        self._remember()
        for name in sorted(self._files, key=_order):
            if not _is_kept(name):
                self._report(f"passed over {name!r}, which is no name of a run's file")
            elif not self._fetch(self._files[name]):
                return False
        for name in self._had.keys() - self._files:
            # An old checkpoint, which the learner has deleted.
            remove(self._out / name)
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
        make_directory(path.parent)
        write_atomically(path, data)
        self._had[file.name] = md5_of(data)
        self._remember()
        self._report(f"{file.size:>12,} bytes  {path}")
        return True

    def _check_unchanged(self) -> None:
        """Checks that local files are unchanged since their download.

        Raises:
            KeptError: A file matches neither its earlier download nor the bucket.
        """
        changed = [
            name
            for name, known in self._had.items()
            if (found := _digest(self._out / name))
            and found != known
            and (name not in self._files or found != self._files[name].tag)
        ]
        if changed:
            raise KeptError(
                f"--out {self._out}: {', '.join(sorted(changed)[:3])} was changed since it was downloaded, "
                "as by continuing the run here; name another directory"
            )

    def _read_marker(self, directory: RunDirectory) -> dict[str, str]:
        """Reads which files were downloaded before.

        Raises:
            KeptError: The directory holds another run.
        """
        found = json_object(self._marker.read_bytes()) if self._marker.exists() else {}
        if found.get("source") == self._run.url and isinstance(files := found.get("files"), dict):
            # The directory may come from someone else, and files named here may be removed.
            return {name: tag for name, tag in files.items() if _is_kept(name)}
        if found or directory.holds_run:
            raise KeptError(f"--out {self._out}: holds another run; name another directory")
        return {}

    def _remember(self) -> None:
        write_atomically(self._marker, to_json({"source": self._run.url, "files": self._had}))


def _is_kept(name: str) -> bool:
    """Returns whether to download a file. Learners run the environment's code, which can write any name."""
    return bool(layout.RUN_FILE.fullmatch(name)) or name in (layout.ENDED, layout.REFUSED)


def _order(name: str) -> tuple[int, str]:
    """Orders checkpoints before the rows that lead to them."""
    return (0 if name.startswith(_CHECKPOINTS) else 1), name


def _digest(path: Path) -> str:
    """Returns a file's digest; empty if there is no such file."""
    try:
        return md5_of(path.read_bytes())
    except FileNotFoundError:
        return ""
