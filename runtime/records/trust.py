"""Loads experiment files, and decides which code that a run names is run.

A downloaded run was written by a learner that runs the environment's code, so its config.yaml may say anything: its
environment ``module:name``, its wrappers and its arguments only count if the user names them. No run's own config.yaml,
downloaded or not, names a kind ``module:Settings`` or callbacks that are imported. With ``trust``, all of it is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import ExperimentError
from runtime.experiment.loading import experiment_from_tree, load_experiment
from runtime.experiment.schema import Experiment
from runtime.records import layout


def load_trusted_experiment(
    path: Path, overrides: Sequence[str] = (), *, is_of_run: bool = False, trust: bool = False
) -> Experiment:
    """Loads an experiment file before making its environment.

    Args:
        path: The file, a run's own or another.
        overrides: See `load_experiment`.
        is_of_run: Whether to use a run's policy, and call no callbacks. Always true for a file among a run's files.
        trust: Whether the user trusts the run and the code that it names.

    Raises:
        ExperimentError: It cannot be loaded; or it is a run's own, and extends another file or names code that
            ``overrides`` do not.
    """
    is_downloaded = (path.parent / layout.DOWNLOADED).exists()
    is_runs_own = is_of_run or is_downloaded or _stands_in_run(path)
    if is_downloaded and _is_named("environment.id", overrides):
        # Drops code that belongs to the download's own environment.
        overrides = ["environment.kwargs={}", "environment.wrappers=[]", *overrides]
    experiment = load_experiment(path, overrides, is_of_run=is_runs_own, may_import=trust)
    code = environment_code(experiment) if is_downloaded else {}
    if is_runs_own and not is_of_run and experiment.callbacks:
        code["callbacks"] = list(experiment.callbacks)
    unnamed = [f"{key} = {value!r}" for key, value in code.items() if not _is_named(key, overrides)]
    if unnamed and not trust:
        raise ExperimentError(
            f"{' and '.join(unnamed)} of a {'downloaded ' * is_downloaded}run is code, and code that a run "
            "names is not run. If it is your own, name it yourself: --environment of evaluate and export, "
            "environment= of load_policy, --set environment.id= or --set callbacks= of train; or, if you trust the "
            "run, --trust of train, evaluate and export"
        )
    return experiment


def load_file_or_dict(
    experiment: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Iterable[str] = (),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    trust: bool = False,
) -> Experiment:
    """Returns the experiment that a script gives.

    Args:
        experiment: An experiment file, or its content as a dict.
        overrides: Keys to change in a file, each ``section.key=value``.
        changes: Sections whose keys count before all others.
        trust: See `load_trusted_experiment`.

    Raises:
        ExperimentError: See `load_trusted_experiment`; or ``overrides`` are not a list, or beside a dict.
    """
    changes = changes or {}
    if isinstance(overrides, str):
        raise ExperimentError(f"overrides = {overrides!r} is not a list; allowed: [{overrides!r}]")
    overrides = list(overrides)
    if not isinstance(experiment, Mapping):
        overrides += [f"{section}={keys}" for section, keys in changes.items()]
        return load_trusted_experiment(Path(experiment), overrides, trust=trust)
    if overrides:
        raise ExperimentError("overrides are for an experiment file; change the dict instead")
    return experiment_from_tree(changes, base=experiment, source="experiment")


def environment_code(experiment: Experiment) -> dict[str, Any]:
    """Returns the keys of an experiment that decide which code its environment runs, with their values."""
    environment = experiment.environment
    keys = {
        "environment.id": environment.id if ":" in environment.id else "",
        "environment.kwargs": environment.kwargs,
        "environment.wrappers": environment.wrappers,
    }
    return {key: value for key, value in keys.items() if value}


def _stands_in_run(path: Path) -> bool:
    return path.name == layout.CONFIG and any(
        (path.parent / name).exists()
        for name in (
            layout.ROUNDS,
            layout.EVENTS,
            layout.POLICY,
            layout.CHECKPOINTS,
            layout.SUMMARY,
        )
    )


def _is_named(key: str, overrides: Sequence[str]) -> bool:
    return any(override.strip().startswith((f"{key}=", f"{key}.")) for override in overrides)
