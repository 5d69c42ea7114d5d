"""Whole trainings with ``python -m runtime train``. Each is made once, and continues after an interruption."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, commit_of
from papers.nitro.schedules import schedule_of

FINISHED = ("target_return", "max_steps", "max_rounds", "budget")
"""Reasons to stop that end a run for good."""


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        file: The experiment.
        arm: Its group in comparisons.
        directory: The run's directory.
        source: The arm whose actors are counted, and the order of its counts (papers.nitro.schedules).
    """

    file: str
    arm: str
    seed: int
    settings: dict[str, object]
    directory: Path
    source: tuple[str, str] | None = None

    @property
    def commits(self) -> Path:
        """A file next to the directory, with the commit of each session."""
        return self.directory.parent / f"{self.directory.name}.commits.txt"


def is_finished(directory: Path) -> bool:
    """Returns whether a run exists and has ended."""
    path = directory / "summary.json"
    return path.is_file() and json.loads(path.read_text())["stop_reason"] in FINISHED


def train(run: Training, counts: Sequence[int] = ()) -> None:
    """Trains one run to its end. Continues an interrupted one.

    Args:
        counts: Actors by round of the run's source.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    run.directory.parent.mkdir(parents=True, exist_ok=True)
    with run.commits.open("a") as commits:
        commits.write(f"{commit_of()}\n")
    settings = dict(run.settings)
    if run.source is not None:
        settings["scaler.kind"] = "schedule"
        settings["scaler.schedule"] = schedule_of(counts, run.source[1], seed=run.seed)
    options = [
        part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    command = [sys.executable, "-m", "runtime", "train", run.file, "--out", str(run.directory)]
    with (run.directory.parent / f"{run.directory.name}.log").open("w") as log:
        subprocess.run(
            [*command, "--resume", *options],
            cwd=ROOT,
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )


def asked_for(description: str, workloads: Collection[str]) -> argparse.Namespace:
    """Returns the command-line options of a study of whole trainings: workload, work, jobs."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=workloads)
    parser.add_argument(
        "--work", type=lambda text: Path(text).resolve(), required=True, help="folder of the runs"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="trainings at a time; 0 = only write what is finished"
    )
    parser.add_argument("--arms", nargs="*", default=(), help="arms to train (default: all)")
    return parser.parse_args()


def train_all(
    runs: Iterable[Training],
    *,
    jobs: int,
    counts_of: Callable[[str, int], Sequence[int]],
    note: Callable[[], None],
) -> None:
    """Trains unfinished runs, several at a time.

    Args:
        runs: A run whose source is among them comes after it.
        jobs: Trainings at a time.
        counts_of: Returns the actors by round of an arm's run, by its seed.
        note: Called after each training, never by two at once.
    """
    lock = threading.Lock()
    begun: dict[tuple[str, int], Future[None]] = {}

    def one(run: Training) -> None:
        counts: Sequence[int] = ()
        try:
            if run.source is not None:
                source = (run.source[0], run.seed)
                if source in begun:
                    begun[source].result()
                counts = counts_of(*source)
            train(run, counts)
        except (subprocess.CalledProcessError, KeyError) as error:
            print(f"{run.directory}: {error!r}; see its log", file=sys.stderr, flush=True)
            return
        with lock:
            note()

    with ThreadPoolExecutor(jobs) as pool:
        for run in runs:
            if not is_finished(run.directory):
                begun[run.arm, run.seed] = pool.submit(one, run)
    for future in begun.values():
        future.result()


def records(run: Training) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Returns a run's summary, its rounds, and the commits that trained it."""
    return (
        json.loads((run.directory / "summary.json").read_text()),
        [json.loads(line) for line in (run.directory / "rounds.jsonl").read_text().splitlines()],
        run.commits.read_text().split() if run.commits.exists() else [],
    )


def columns(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """Returns columns of rounds, with numbers rounded to five digits."""
    kept = list(rows)
    return {name: [_short(row[name]) for row in kept] for name in names}


def _short(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.5g}")
