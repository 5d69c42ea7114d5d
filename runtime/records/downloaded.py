"""Limits what a run may name: installed environments and kinds, but no code and no other file.

A run in the bucket was written by a learner that runs the environment's code, so its config.yaml may say anything. An
environment ``module:name`` is only imported if the user names it. The same goes for wrappers, and for arguments, whose
effects are unknown. A kind ``module:Settings`` is never imported from a run's config.yaml, downloaded or not, unless
the user trusts the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment
from runtime.errors import ExperimentError
from runtime.records import layout

_NO_CODE = {"kwargs": "environment.kwargs={}", "wrappers": "environment.wrappers=[]"}
"""Overrides for keys, other than the id, that can run code when the environment is made."""


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
        ExperimentError: It cannot be loaded; or it belongs to a downloaded run, and extends another file or names code
            that ``overrides`` do not.
    """
    is_downloaded = (path.parent / layout.DOWNLOADED).exists()
    is_runs_own = is_of_run or is_downloaded or _stands_in_run(path)
    if is_downloaded and _is_named("environment.id", overrides):
        # The download's settings were for another environment.
        overrides = [
            *(
                nothing
                for name, nothing in _NO_CODE.items()
                if not _is_named(f"environment.{name}", overrides)
            ),
            *overrides,
        ]
    experiment = load_experiment(
        path, overrides, is_of_run=is_runs_own, may_import=trust or not is_runs_own
    )
    named = (
        {f"environment.{name}": value for name, value in code_of(experiment).items()}
        if is_downloaded
        else {}
    )
    if experiment.callbacks and is_runs_own and not is_of_run:
        named["callbacks"] = list(experiment.callbacks)
    unnamed = [
        f"{key} = {value!r}" for key, value in named.items() if not _is_named(key, overrides)
    ]
    if unnamed and not trust:
        raise ExperimentError(
            f"{' and '.join(unnamed)} of a {'downloaded ' * is_downloaded}run is code, and code that a run "
            "names is not run. If it is your own, name it yourself: --environment of evaluate and export, "
            "environment= of load_policy, --set environment.id= or --set callbacks= of train; or, if you trust the "
            "run, --trust of train, evaluate and export"
        )
    return experiment


def _stands_in_run(path: Path) -> bool:
    return path.name == layout.CONFIG and any(
        (path.parent / name).exists()
        for name in (layout.ROUNDS, layout.EVENTS, layout.POLICY, layout.CHECKPOINTS)
    )


def code_of(experiment: Experiment) -> dict[str, Any]:
    """Returns the keys of the section ``environment`` that influence which code runs, with their values."""
    environment = experiment.environment
    named = {"id": environment.id} if ":" in environment.id else {}
    return named | {
        name: getattr(environment, name) for name in _NO_CODE if getattr(environment, name)
    }


def _is_named(key: str, overrides: Sequence[str]) -> bool:
    return any(one.strip().startswith(f"{key}=") for one in overrides)
