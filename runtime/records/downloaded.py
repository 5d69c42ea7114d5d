"""What a downloaded run may name: environments that are installed here, but no code, and no other file.

A run in the bucket was written by a learner, which runs the environment's code: its config.yaml may say anything. An
environment ``module:name`` is imported, so it is only where the user names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment
from runtime.errors import ExperimentError
from runtime.records import layout

_KEY = "environment.id="


def load_trusted_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Loads an experiment file whose environment is about to be made.

    Args:
        path: The file; a run's own, or anybody's.
        overrides: As of `load_experiment`.

    Raises:
        ExperimentError: It cannot be loaded; or it is a downloaded run's and extends another file, or names code,
            which ``overrides`` do not.
    """
    is_downloaded = (path.parent / layout.DOWNLOADED).exists()
    experiment = load_experiment(path, overrides, may_extend=not is_downloaded)
    is_named = any(one.strip().startswith(_KEY) for one in overrides)
    if ":" in experiment.environment.id and not is_named and is_downloaded:
        raise ExperimentError(
            f"environment.id = {experiment.environment.id!r} of a downloaded run is code, and code that a download "
            "names is not run. If it is your own, name it yourself: --environment of evaluate and export, "
            "environment= of load_policy, --set environment.id= of train; or copy the file elsewhere")
    return experiment


def load_run_experiment(directory: Path, environment_id: str | None) -> Experiment:
    """Loads the experiment of a run whose environment is about to be made.

    Args:
        directory: The run's.
        environment_id: The environment, if the user names it; None for the run's.

    Raises:
        ExperimentError: As `load_trusted_experiment`.
    """
    overrides = [_KEY + environment_id] if environment_id is not None else []
    return load_trusted_experiment(directory / layout.CONFIG, overrides)
