"""policy.safetensors: the trained policy, complete with its normaliser, for whoever wants to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors.numpy

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.errors import RunDirectoryError
from runtime.records.files import write_atomically


def save_policy(path: Path, weights: bytes, *, environment_id: str) -> None:
    """Writes a WEIGHTS message's arrays under their names (see `lambda_actor.wire.SCHEMAS`)."""
    arrays: Mapping[str, np.ndarray] = wire.decode(weights, wire.Kind.WEIGHTS)
    write_atomically(path, safetensors.numpy.save(
        {name: np.array(array) for name, array in arrays.items()}, metadata={"environment.id": environment_id}))


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
