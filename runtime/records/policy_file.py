"""policy.safetensors and best_policy.safetensors: trained policies, each with its normalizer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import safetensors.numpy

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.errors import RunDirectoryError, one_line
from runtime.experiment.schema import Experiment
from runtime.records import layout
from runtime.records.files import write_atomically
from runtime.records.trust import load_trusted_experiment

if TYPE_CHECKING:
    from lambda_actor.environments import ActorEnvironment

_ENVIRONMENT = "environment.id"
"""The only metadata entry: safetensors does not order entries, and equal policies should make equal files."""


def save_policy(path: Path, weights: bytes, *, environment_id: str) -> None:
    """Writes a WEIGHTS message's arrays under their names (see `lambda_actor.wire.SCHEMAS`)."""
    fields = wire.decode(weights, wire.Kind.WEIGHTS)
    arrays = {name: np.array(array) for name, array in fields.items()}
    metadata = {_ENVIRONMENT: environment_id}
    write_atomically(path, safetensors.numpy.save(arrays, metadata=metadata))


def load_run_policy(
    directory: Path, *, is_best: bool, environment_id: str | None, trust: bool
) -> tuple[bytes, Experiment, ActorEnvironment]:
    """Returns a run's policy as a WEIGHTS message, the run's experiment, and an environment, which the caller closes.

    Args:
        directory: The run's directory.
        is_best: Whether to take the best evaluated policy; otherwise the one that reached the target, else the newest.
        environment_id: The user's environment; None = the run's.
        trust: Whether to run code that the run names.

    Raises:
        RunDirectoryError: The directory does not hold one run with this policy; or the file is damaged, or belongs to
            another environment.
        ExperimentError: See `runtime.records.trust.load_trusted_experiment`.
        UnusableEnvironmentError: The environment cannot be made here.
    """
    from lambda_actor.environments import make_environment

    if layout.holds_seeds(directory):
        raise RunDirectoryError(
            f"{directory} holds several seeds: name one of its directories, seed-S"
        )
    newest, best = directory / layout.POLICY, directory / layout.BEST_POLICY
    if is_best and newest.exists() and not best.exists():
        raise RunDirectoryError(
            f"{best} is not there: none of the run's evaluations (evaluation.every_rounds) has "
            "ended, or an earlier version of this program made the run"
        )
    path = best if is_best else newest
    weights, trained_in = read_policy(path)
    overrides = [f"environment.id={environment_id}"] if environment_id is not None else []
    experiment = load_trusted_experiment(
        directory / layout.CONFIG, overrides, is_of_run=True, trust=trust
    )
    said = experiment.environment.id
    if environment_id is None and trained_in not in (None, said):
        raise RunDirectoryError(
            f"{path} was trained in {one_line(repr(trained_in))}, but {layout.CONFIG} beside it "
            f"says {said!r}; allowed: the run's own policy, or the environment named by the user"
        )
    section = experiment.environment
    environment = make_environment(section.id, section.preprocessing, section.options)
    if environment.spaces.is_discrete:
        # Only now it is known whether it has action masks. Its errors are raised again where it is used.
        with suppress(Exception):
            environment.reset(0)
    return weights, experiment, environment


def read_policy(path: Path) -> tuple[bytes, str | None]:
    """Returns the weights message, and the environment that the policy was trained in.

    Raises:
        RunDirectoryError: The file or its run is missing or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
        arrays = safetensors.numpy.load_file(path)
        if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
            raise SchemaError(f"{', '.join(broken)} holds NaN or infinity")
        return wire.encode(wire.Kind.WEIGHTS, arrays), facts.get(_ENVIRONMENT)
    except (FileNotFoundError, NotADirectoryError):
        run = path.parent
        if not run.is_dir():
            raise RunDirectoryError(
                f"{run}: there is no such directory; name the run's directory"
            ) from None
        raise RunDirectoryError(f"{path} is not there: no round has finished in {run}") from None
    except (OSError, safetensors.SafetensorError, SchemaError) as error:
        raise RunDirectoryError(
            f"{path} cannot be read, or another version of this program wrote it: {error}"
        ) from None
