"""policy.safetensors and best_policy.safetensors: trained policies, each complete with its normaliser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.errors import RunDirectoryError
from runtime.records import layout
from runtime.records.files import write_atomically


def save_policy(path: Path, weights: bytes, *, environment_id: str) -> None:
    """Writes a WEIGHTS message's arrays under their names (see `lambda_actor.wire.SCHEMAS`)."""
    arrays: Mapping[str, np.ndarray] = wire.decode(weights, wire.Kind.WEIGHTS)
    write_atomically(path, safetensors.numpy.save(
        {name: np.array(array) for name, array in arrays.items()}, metadata={"environment.id": environment_id}))


def load_run_policy(directory: Path, *, is_best: bool) -> bytes:
    """A run's policy as a WEIGHTS message: the one that reached the target, else the newest; or the best evaluated one.

    Raises:
        RunDirectoryError: The directory does not hold one run, or not this policy of it; or the file is damaged.
    """
    if layout.holds_seeds(directory):
        raise RunDirectoryError(f"{directory} holds several seeds: name one of its directories, seed-S")
    newest, best = directory / layout.POLICY, directory / layout.BEST_POLICY
    if is_best and newest.exists() and not best.exists():
        raise RunDirectoryError(f"{best} is not there: none of the run's evaluations (evaluation.every_rounds) has "
                                "ended, or an earlier version of this program made the run")
    return load_policy(best if is_best else newest)


def load_policy(path: Path) -> bytes:
    """The same weights message again.

    Raises:
        RunDirectoryError: The file or its run is missing, or it is damaged.
    """
    try:
        arrays = safetensors.numpy.load(path.read_bytes())
        if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
            raise SchemaError(f"{', '.join(broken)} holds NaN or infinity")
        return wire.encode(wire.Kind.WEIGHTS, arrays)
    except (FileNotFoundError, NotADirectoryError):
        run = path.parent
        if not run.is_dir():
            raise RunDirectoryError(f"{run}: " + ("is a file; name the run's directory" if run.exists()
                                                  else "there is no such directory")) from None
        raise RunDirectoryError(f"{path} is not there: no round has finished in {run}") from None
    except (OSError, safetensors.SafetensorError, SchemaError) as error:
        raise RunDirectoryError(f"{path} cannot be read, or another version of this program wrote it: "
                                f"{error}") from None
