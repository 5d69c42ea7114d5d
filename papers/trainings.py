"""Whole trainings with ``python -m runtime train``. Each is made once, and continues after an interruption."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import ROOT, commit_of
from papers.runs import Run
from runtime.config.loading import load_experiment
from runtime.cost.rates import Rates, tabled
from runtime.records.layout import RATES
from runtime.training.preflight import preflight

FINISHED = ("target_return", "max_steps", "max_rounds", "budget")
"""Reasons to stop that end a run for good."""


def is_finished(directory: Path) -> bool:
    """Returns whether a run exists and has ended."""
    path = directory / "summary.json"
    return path.is_file() and json.loads(path.read_text())["stop_reason"] in FINISHED


def train(run: Run) -> None:
    """Trains one run to its end. Continues an interrupted one.

    Raises:
        subprocess.CalledProcessError: It fails.
    """
    with run.commits.open("a") as commits:
        commits.write(f"{commit_of()}\n")
    if run.step_s is not None and not (run.directory / RATES).exists():
        units = {
            **tabled(preflight(load_experiment(ROOT / run.file).resolved())[1]),
            "step_s": run.step_s,
            "evaluated_step_s": run.step_s,
        }
        run.directory.mkdir(parents=True, exist_ok=True)
        Rates(f"the table, as if a step took {run.step_s:g} s", units, run.directory / RATES).save()
    options = [
        part
        for key, value in run.settings.items()
        for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    with (run.directory.parent / f"{run.directory.name}.log").open("w") as log:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "runtime",
                "train",
                run.file,
                "--out",
                str(run.directory),
                "--resume",
                *options,
            ],
            cwd=ROOT,
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )


def asked_for(description: str, workloads: Collection[str]) -> argparse.Namespace:
    """Returns the command-line options of a study of whole trainings: workload, work, jobs, until_s."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=workloads)
    parser.add_argument(
        "--work", type=lambda text: Path(text).resolve(), required=True, help="folder of the runs"
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no training after this many"
    )
    asked = parser.parse_args()
    asked.until_s = time.monotonic() + 60.0 * asked.minutes
    return asked


def train_all(runs: Iterable[Run], *, jobs: int, until_s: float, note: Callable[[], None]) -> None:
    """Trains unfinished runs, several at a time. Starts none after ``until_s``.

    Args:
        note: Called after each training, never by two at once.
    """
    open_runs = [run for run in runs if not is_finished(run.directory)]
    done, lock = {run.directory: threading.Event() for run in open_runs}, threading.Lock()

    def one(run: Run) -> None:
        try:
            if run.needs in done:
                done[run.needs].wait()
            if time.monotonic() < until_s and (run.needs is None or is_finished(run.needs)):
                run.directory.parent.mkdir(parents=True, exist_ok=True)
                train(run)
                with lock:
                    note()
        except subprocess.CalledProcessError as error:
            print(
                f"{run.directory}: ended with {error.returncode}; see its log",
                file=sys.stderr,
                flush=True,
            )
        finally:
            done[run.directory].set()

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, open_runs))


def records(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
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


def by_round(runs: Sequence[Mapping[str, Any]], column: str) -> np.ndarray:
    """Returns a column of each run, ``[runs, rounds]``; NaN if a round has no value."""
    return np.array(
        [[np.nan if one is None else one for one in run["rows"][column]] for run in runs], float
    )


def write_whole(path: Path, found: Mapping[str, Any]) -> None:
    """Writes results atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found))
    temporary.replace(path)
