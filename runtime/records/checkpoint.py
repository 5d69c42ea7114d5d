"""Checkpoints: all state that later rounds depend on, on disk after each round.

A checkpoint is two files: ``round_000012.safetensors`` with the arrays, and ``round_000012.json`` with everything else
and the SHA-256 of both. The JSON is written last, in one step: a checkpoint exists if its JSON does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from runtime.errors import CheckpointError
from runtime.records import layout
from runtime.records.files import make_directory, remove, to_json, write_atomically

VERSION = 1
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """State after round ``round_index``: arrays by name, and JSON values."""

    round_index: int
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint atomically, and removes all but the newest two."""
    make_directory(directory)
    arrays = safetensors.numpy.save(
        {
            name: np.ascontiguousarray(a).reshape(np.shape(a))
            for name, a in checkpoint.arrays.items()
        }
    )
    values = {
        "version": VERSION,
        "round_index": checkpoint.round_index,
        "values": checkpoint.values,
        "arrays_sha256": hashlib.sha256(arrays).hexdigest(),
    }
    stem = f"round_{checkpoint.round_index:06d}"
    write_atomically(directory / f"{stem}.safetensors", arrays)
    write_atomically(directory / f"{stem}.json", to_json(values | {"sha256": digest(values)}))
    kept = _stems(directory)[:_KEPT]
    # In the order of their names, so the JSON first. Also removes leftovers of a killed process.
    for name in sorted(os.listdir(directory)):
        if layout.CHECKPOINT_NAME.fullmatch(name) and name.partition(".")[0] not in kept:
            remove(directory / name)


def load_newest_checkpoint(
    directory: Path, report: Callable[[str, str], None]
) -> Checkpoint | None:
    """Returns the newest sound checkpoint; None if none was ever written.

    Args:
        report: Called with the name and the problem of each newer checkpoint that is skipped.

    Raises:
        CheckpointError: There are checkpoints, but none is sound.
    """
    stems = _stems(directory)
    for stem in stems:
        try:
            return _load(directory, stem)
        except CheckpointError as error:
            report(stem, str(error))
    if stems:
        raise CheckpointError(
            f"none of the checkpoints in {directory} is sound: {', '.join(stems)}"
        )
    return None


def _load(directory: Path, stem: str) -> Checkpoint:
    try:
        document = json.loads((directory / f"{stem}.json").read_bytes())
        expected = document.pop("sha256")
        if digest(document) != expected:
            raise CheckpointError(f"{stem}.json was altered or damaged")
        if document["version"] != VERSION:
            raise CheckpointError(
                f"{stem}.json is of version {document['version']}; this program reads {VERSION}"
            )
        data = (directory / f"{stem}.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != document["arrays_sha256"]:
            raise CheckpointError(f"{stem}.safetensors was altered or damaged")
        arrays = safetensors.numpy.load(data)
        return Checkpoint(document["round_index"], arrays, document["values"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        safetensors.SafetensorError,
    ) as error:
        raise CheckpointError(f"{stem} cannot be read: {type(error).__name__}: {error}") from error


def _stems(directory: Path) -> list[str]:
    """Returns the checkpoints, newest first."""
    found = map(
        layout.CHECKPOINT_NAME.fullmatch, os.listdir(directory) if directory.is_dir() else ()
    )
    return sorted(
        (name[0].removesuffix(".json") for name in found if name and name[2] == "json"),
        key=lambda stem: (len(stem), stem),
        reverse=True,
    )


def digest(values: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
