"""policy.safetensors and best_policy.safetensors: trained policies, each with its normalizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.errors import RunDirectoryError
from runtime.records.files import write_atomically

_ENVIRONMENT = "environment.id"
"""The only metadata entry: safetensors does not order entries, and equal policies should make equal files."""


def save_policy(path: Path, weights: bytes, *, environment_id: str) -> None:
    """Writes a WEIGHTS message's arrays under their names (see `lambda_actor.wire.SCHEMAS`)."""
    fields = wire.decode(weights, wire.Kind.WEIGHTS)
    arrays = {name: np.array(array) for name, array in fields.items()}
    metadata = {_ENVIRONMENT: environment_id}
    write_atomically(path, safetensors.numpy.save(arrays, metadata=metadata))


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
