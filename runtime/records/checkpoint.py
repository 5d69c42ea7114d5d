"""Checkpoints: all state that later rounds depend on, on disk after each round.

A checkpoint is two files: ``round_000012.safetensors`` with the arrays, and ``round_000012.json`` with everything else
and the SHA-256 of both. The JSON is written last, in one step: a checkpoint exists if its JSON does.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from runtime.errors import CheckpointError
from runtime.records.files import make_directory, remove, to_json, write_atomically

VERSION = 2


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
    # As it will be read: JSON's keys are strings.
    document = json.loads(
        to_json(
            {
                "version": VERSION,
                "round_index": checkpoint.round_index,
                "values": checkpoint.values,
            }
        )
    )
    signed = to_json({**document, "sha256": _sha256(arrays, document)})
    stem = f"round_{checkpoint.round_index:06d}"
    write_atomically(directory / f"{stem}.safetensors", arrays)
    write_atomically(directory / f"{stem}.json", signed)
    newest = _stems(directory)[:2]
    # In the order of their names, so the JSON first. Also removes leftovers of a killed process.
    for path in sorted(directory.glob("round_*")):
        if path.name.partition(".")[0] not in newest:
            remove(path)


def load_newest_checkpoint(
    directory: Path, report: Callable[[str, str], None], *, last_round: float = math.inf
) -> Checkpoint | None:
    """Returns the newest sound checkpoint; None if none was ever written.

    Args:
        last_round: The run's last round with a row on disk. Later checkpoints are skipped.
        report: Called with the name and the problem of each newer checkpoint that is skipped.

    Raises:
        CheckpointError: There are checkpoints, but none can be used.
    """
    reasons = []
    for stem in _stems(directory):
        try:
            checkpoint = _load(directory, stem)
            if checkpoint.round_index > last_round:
                raise CheckpointError(
                    f"{stem} is newer than the rows: the last whole one of rounds.jsonl is {last_round}"
                )
            return checkpoint
        except CheckpointError as error:
            reasons.append(str(error))
            report(stem, reasons[-1])
    if reasons:
        raise CheckpointError(
            f"none of the checkpoints in {directory} can be used: {'; '.join(reasons)}"
        )
    return None


def _load(directory: Path, stem: str) -> Checkpoint:
    try:
        document = json.loads((directory / f"{stem}.json").read_bytes())
        data = (directory / f"{stem}.safetensors").read_bytes()
        if document["version"] != VERSION:
            raise CheckpointError(
                f"{stem}.json is of version {document['version']}; this program reads {VERSION}"
            )
        if document.pop("sha256") != _sha256(data, document):
            raise CheckpointError(f"{stem} was altered or damaged")
        arrays = safetensors.numpy.load(data)
        return Checkpoint(document["round_index"], arrays, document["values"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
        safetensors.SafetensorError,
    ) as error:
        raise CheckpointError(f"{stem} cannot be read: {type(error).__name__}: {error}") from error


def _stems(directory: Path) -> list[str]:
    """Returns the checkpoints, newest first."""
    stems = (path.stem for path in directory.glob("round_*.json"))
    return sorted(stems, key=lambda stem: (len(stem), stem), reverse=True)


def _sha256(arrays: bytes, document: Mapping[str, Any]) -> str:
    """Returns the digest of a checkpoint's two files, independent of the order of keys."""
    digest = hashlib.sha256(arrays)
    digest.update(json.dumps(document, sort_keys=True).encode())
    return digest.hexdigest()
