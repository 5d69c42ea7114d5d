"""Trains the arms of a study of papers/protocol.yaml: ``python -m papers.study STUDY --work WORK [--jobs 2]``.

Continues where it ended. Trains seed by seed, so that the arms can be compared at any time, and writes
papers/results/STUDY.json after each run: the study, and the columns of each run's rounds. An arm with ``counts_of`` and
``order`` plays a schedule made from that arm's run of the same seed; see papers.nitro.schedules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from papers.trainings import Training, asked_for, columns, is_finished, records, train_all
from runtime.records.files import write_atomically

PROTOCOL = Path(__file__).with_name("protocol.yaml")
RESULTS = Path(__file__).with_name("results")
SEEDS = range(10)
SERIES = (
    "actor_count",
    "env_steps",
    "episode_return_mean",
    "episode_length_mean",
    "episodes_finished",
    "evaluation_return_mean",
    "eigenvalue_min",
    "eigenvalue_max",
    "hessian_products",
    "kl",
    "explained_variance",
    "gradient_steps",
)
"""Columns that figures need, and prices by counts."""


def studies() -> Mapping[str, Any]:
    """Returns the protocol's studies by name."""
    found: Mapping[str, Any] = yaml.safe_load(PROTOCOL.read_text())["studies"]
    return found


def trainings(name: str, work: Path) -> list[Training]:
    """Returns a study's trainings, seed by seed."""
    study = studies()[name]
    runs = []
    for seed in SEEDS:
        for arm, own in study["arms"].items():
            settings = {**study["settings"], **own, "seed": seed}
            counts_of = settings.pop("counts_of", None)
            order = settings.pop("order", None)
            source = (_directory(work, name, counts_of, seed), order) if counts_of else None
            directory = _directory(work, name, arm, seed)
            runs.append(Training(study["file"], arm, seed, settings, directory, source))
    return runs


def _directory(work: Path, name: str, arm: str, seed: int) -> Path:
    return work / name / arm / f"seed-{seed}"


def write(name: str, runs: list[Training]) -> None:
    """Writes the finished runs."""
    finished: dict[str, dict[int, Any]] = {}
    commits: set[str] = set()
    for run in runs:
        if is_finished(run.directory):
            _, rows, trained_by = records(run)
            finished.setdefault(run.arm, {})[run.seed] = columns(rows, SERIES)
            commits.update(trained_by)
    content = {"study": studies()[name], "commits": sorted(commits), "runs": finished}
    RESULTS.mkdir(exist_ok=True)
    write_atomically(RESULTS / f"{name}.json", json.dumps(content).encode())


def main() -> None:
    """Trains a study."""
    chosen = asked_for(__doc__ or "", studies())
    runs = trainings(chosen.workload, chosen.work)
    asked = [run for run in runs if not chosen.arms or run.arm in chosen.arms]
    train_all(asked, jobs=chosen.jobs, note=lambda: write(chosen.workload, runs))
    write(chosen.workload, runs)


if __name__ == "__main__":
    main()
