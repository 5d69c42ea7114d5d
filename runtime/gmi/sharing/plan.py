"""The fields of a chunk, and their places in the memory that instances share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from mmap import mmap
from typing import Any

import numpy as np

from lambda_actor.spaces import Spaces
from lambda_actor.wire import MESSAGE_BYTES_MAX

_ALIGNMENT = 64


@dataclass(frozen=True)
class Field:
    """A field of a chunk.

    Attributes:
        dtype: NumPy's name of the type.
        shape: Shape of the chunk's value, or of one row if ``rows_max`` is given.
        rows_max: None if a chunk has one value. Otherwise it has up to this many rows, such as one for each step.
            Missing rows take no memory.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    rows_max: int | None = None


@dataclass(frozen=True)
class ChunkPlan:
    """Layout of the shared memory, the same in all instances that share experience.

    Attributes:
        fields: Fields by name.
        chunks: Number of chunks.
    """

    fields: Mapping[str, Field]
    chunks: int

    @property
    def size(self) -> int:
        """Bytes of all channels."""
        return sum(size for _, _, _, size in self._blocks())

    def channels(self, memory: mmap) -> dict[str, np.ndarray]:
        """Returns the channels as views of the memory.

        Returns:
            By field ``[chunks, …]``. ``…`` begins with ``rows_max`` if given; then the channel named by `row_count`
            contains the number of rows, int64 ``[chunks]``.
        """
        found: dict[str, np.ndarray] = {}
        offset = 0
        for name, dtype, shape, size in self._blocks():
            found[name] = np.ndarray((self.chunks, *shape), dtype, memory, offset)
            offset += size
        return found

    def values(self) -> dict[str, Any]:
        """Returns the plan as JSON values for `plan_of`."""
        return asdict(self)

    def _blocks(self) -> list[tuple[str, np.dtype, tuple[int, ...], int]]:
        """Returns the channels in memory order: name, dtype and shape of a chunk's value, and bytes in all."""
        parts: list[tuple[str, np.dtype, tuple[int, ...]]] = []
        for name, field in self.fields.items():
            if field.rows_max is None:
                parts.append((name, np.dtype(field.dtype), field.shape))
            else:
                parts += [
                    (name, np.dtype(field.dtype), (field.rows_max, *field.shape)),
                    (row_count(name), np.dtype(np.int64), ()),
                ]
        return [
            (
                name,
                dtype,
                shape,
                -(-self.chunks * dtype.itemsize * math.prod(shape) // _ALIGNMENT) * _ALIGNMENT,
            )
            for name, dtype, shape in parts
        ]


def plan_of(values: Mapping[str, Any]) -> ChunkPlan:
    """Returns the plan, given the result of `ChunkPlan.values`."""
    return ChunkPlan(
        {
            name: Field(one["dtype"], tuple(one["shape"]), one["rows_max"])
            for name, one in values["fields"].items()
        },
        values["chunks"],
    )


def fragment_plan(spaces: Spaces, fragment_steps: int, chunks: int) -> ChunkPlan:
    """Returns the plan of the fields that `runtime.learner.batch.assemble_batch` reads.

    Args:
        spaces: The environment's spaces.
        fragment_steps: Maximum steps of a fragment.
        chunks: Maximum number of fragments.
    """

    def by_step(dtype: str, *shape: int) -> Field:
        return Field(dtype, shape, fragment_steps)

    if spaces.is_pixels:
        stack = spaces.frame_stack
        # A frame for each step, one after each reset, and the frames of the first stack.
        raw = (2 * fragment_steps + stack + 1) * math.prod(spaces.frame_shape)
        observed = {
            "frames": Field("uint8", (), min(raw, MESSAGE_BYTES_MAX) * 1001 // 1000 + 64),
            "frames_shape": Field("int64", (4,)),
            "observation_frames": by_step("int32", stack),
            "bootstrap_frames": by_step("int32", stack),
        }
    else:
        observed = {
            name: by_step("float32", *spaces.observation_shape)
            for name in ("observations", "bootstrap_observations")
        }
    if spaces.has_action_mask:
        observed["action_masks"] = by_step("bool", spaces.output_size)
    return ChunkPlan(
        {
            "policy_version": Field("int64"),
            "actions": by_step("int64" if spaces.is_discrete else "float32", *spaces.action_shape),
            "log_probs": by_step("float32"),
            "rewards": by_step("float64"),
            "terminated": by_step("bool"),
            "bootstrap_steps": by_step("int64"),
            **observed,
        },
        chunks,
    )


def row_count(name: str) -> str:
    """Returns the name of the channel that counts a field's rows."""
    return f"{name}:rows"
