"""Trains the arms of a study of papers/protocol.yaml: ``python -m papers.study STUDY --work WORK [--jobs 2]``.

Continues where it ended: with the runs in WORK, and without those that are in papers/results. Trains seed by seed, so
that the arms can be compared at any time, and writes papers/results/STUDY.json after each run: the hash of each arm's
settings, and the columns of each run's rounds. An arm with ``counts_of`` and ``order`` plays a schedule made from that
arm's run of the same seed; see papers.nitro.schedules. Refuses runs that had other settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.provenance import ROOT
from papers.estimates import SEEDS
from papers.runs import Results
from papers.trainings import Training, asked_for, columns, is_finished, records, train_all
from runtime.experiment import yaml_text
from runtime.experiment.loading import self_contained
from runtime.records.files import write_atomically

PROTOCOL = Path(__file__).with_name("protocol.yaml")
RESULTS = Path(__file__).with_name("results")
SERIES = (
    "actor_count",
    "env_steps",
    "episode_return_mean",
    "episodes_finished",
    "evaluation_return_mean",
    "eigenvalue_min",
    "eigenvalue_max",
    "hessian_products",
    "product_samples",
    "gradient_steps",
    "samples_trained",
)
"""Columns that figures need, and prices by counts."""


def studies() -> Mapping[str, Any]:
    """Returns the protocol's studies by name."""
    found: Mapping[str, Any] = yaml.safe_load(PROTOCOL.read_text())["studies"]
    return found


def file_values(path: Path) -> dict[str, Any]:
    """Returns the values of an experiment file and of those that it extends, by ``section.key``."""
    tree = yaml_text.parse(self_contained(path).decode(), str(path))
    values = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    for section in tree.keys() - values.keys():
        values |= {f"{section}.{key}": value for key, value in tree[section].items()}
    return values


def settings_hash(study: Mapping[str, Any], arm: str) -> str:
    """Returns a hash of what an arm is trained with, and of the arm whose counts it plays.

    Args:
        study: An entry of the protocol. One without ``file`` has settings alone.
    """
    values = file_values(ROOT / study["file"]) if "file" in study else {}
    values |= {**study.get("settings", {}), **study["arms"][arm]}
    if "counts_of" in values:
        values["counts_of"] = settings_hash(study, values["counts_of"])
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def trainings(name: str, work: Path) -> list[Training]:
    """Returns a study's trainings, seed by seed."""
    study = studies()[name]
    runs = []
    for seed in SEEDS:
        for arm, own in study["arms"].items():
            settings = {**study["settings"], **own, "seed": seed}
            counts_of = settings.pop("counts_of", None)
            order = settings.pop("order", None)
            source = (counts_of, order) if counts_of else None
            directory = work / name / arm / f"seed-{seed}"
            runs.append(Training(study["file"], arm, seed, settings, directory, source))
    return runs


def recorded(name: str) -> dict[str, dict[str, Any]]:
    """Returns a study's recorded runs, by arm and seed, of arms whose settings are the same now."""
    study = studies()[name]
    content = Results(RESULTS, studies()).content(name)
    return {
        arm: dict(runs)
        for arm, runs in content.get("runs", {}).items()
        if arm in study["arms"] and content["hashes"].get(arm) == settings_hash(study, arm)
    }


def check_finished(runs: Iterable[Training]) -> None:
    """Checks that finished runs were trained with the settings that protocol and experiment file have now.

    Raises:
        SystemExit: One was not.
    """
    for run in runs:
        if not is_finished(run.directory):
            continue
        trained = file_values(run.directory / "config.yaml")
        values = {**file_values(ROOT / run.file), **run.settings}
        if run.source is not None:
            values["scaler.kind"] = "schedule"
        for key, value in values.items():
            if trained.get(key, value) != value:
                raise SystemExit(
                    f"{run.directory}: was trained with {key} = {trained[key]!r}, and {run.arm!r} has {value!r} now; "
                    "delete it, or choose another --work"
                )


def write(name: str, runs: list[Training]) -> None:
    """Adds the finished runs to those that are recorded."""
    finished = recorded(name)
    commits: set[str] = set()
    for run in runs:
        if is_finished(run.directory):
            summary, rows, trained_by = records(run)
            kept = {**columns(rows, SERIES), "session_s": [round(summary["measured_session_s"])]}
            finished.setdefault(run.arm, {})[str(run.seed)] = kept
            commits.update(trained_by)
    seconds = sum(run["session_s"][0] for arm in finished.values() for run in arm.values())
    store(name, finished, commits, seconds)


def store(
    name: str, runs: Mapping[str, Mapping[str, Any]], commits: Iterable[str], seconds: float
) -> None:
    """Writes papers/results/STUDY.json.

    Args:
        name: The study.
        runs: What was measured, by arm and seed.
        commits: They measured what is new. Earlier ones stay.
        seconds: How long one core took.
    """
    study = studies()[name]
    earlier = Results(RESULTS, studies()).content(name).get("commits", ())
    content = {
        "study": name,
        "hashes": {arm: settings_hash(study, arm) for arm in runs},
        "commits": sorted({*earlier, *commits}),
        "core_hours": round(seconds / 3600, 3),
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    write_atomically(RESULTS / f"{name}.json", json.dumps(content).encode())


def main() -> None:
    """Trains a study."""
    chosen = asked_for(
        __doc__ or "", [name for name, study in studies().items() if "program" not in study]
    )
    name = chosen.workload
    runs = trainings(name, chosen.work)
    check_finished(runs)
    write(name, runs)
    done = recorded(name)
    asked = [
        run
        for run in runs
        if (not chosen.arms or run.arm in chosen.arms)
        and str(run.seed) not in done.get(run.arm, {})
    ]
    if chosen.jobs:
        train_all(
            asked,
            jobs=chosen.jobs,
            counts_of=lambda arm, seed: recorded(name)[arm][str(seed)]["actor_count"],
            note=lambda: write(name, runs),
        )


if __name__ == "__main__":
    main()
