"""What a chunk consists of, and where each of its fields lies in the memory that instances share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from mmap import mmap
from typing import Any

import numpy as np

from lambda_actor.spaces import Spaces
from lambda_actor.wire import MESSAGE_BYTES_MAX

_RECORD = ""
"""Name of the one channel that all fields lie in."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class Field:
    """A field of a chunk.

    Attributes:
        dtype: As numpy writes it.
        shape: Of the chunk's value; of one row if there are ``rows_max``.
        rows_max: None if a chunk has one value; else it has 0 to so many rows, such as one for each step. Rows that
            are not there take no memory.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    rows_max: int | None = None


@dataclass(frozen=True)
class Plan:
    """The same in all instances that share experience.

    Attributes:
        fields: By name.
        chunks: How many there are.
        is_uni_channel: All fields lie in one channel, chunk after chunk, instead of one channel for each. The baseline
            of the paper's table 8.
    """

    fields: Mapping[str, Field]
    chunks: int
    is_uni_channel: bool = False

    @property
    def size(self) -> int:
        """Bytes of all channels."""
        return sum(size for _, _, _, size in self._blocks())

    def channels(self, memory: mmap) -> dict[str, np.ndarray]:
        """Returns the channels as views of the memory.

        Returns:
            By field ``[chunks, …]``; ``…`` begins with ``rows_max`` if there is one, and `row_count` names the channel
            that says how many rows there are, int64 ``[chunks]``.
        """
        found: dict[str, np.ndarray] = {}
        offset = 0
        for name, dtype, shape, size in self._blocks():
            found[name] = np.ndarray((self.chunks, *shape), dtype, memory, offset)
            offset += size
        if self.is_uni_channel:
            return {name: found[_RECORD][name] for name in found[_RECORD].dtype.names or ()}
        return found

    def values(self) -> dict[str, Any]:
        """Returns what `plan_of` reads, as JSON holds it."""
        return asdict(self)

    def _blocks(self) -> list[tuple[str, np.dtype, tuple[int, ...], int]]:
        """The channels in their order in memory: name, dtype and shape of a chunk's value, and bytes in all."""
        parts: list[tuple[str, np.dtype, tuple[int, ...]]] = []
        for name, field in self.fields.items():
            if field.rows_max is None:
                parts.append((name, np.dtype(field.dtype), field.shape))
            else:
                parts += [(name, np.dtype(field.dtype), (field.rows_max, *field.shape)),
                          (row_count(name), np.dtype(np.int64), ())]
        if self.is_uni_channel:
            parts = [(_RECORD, np.dtype(parts, align=True), ())]
        return [(name, dtype, shape, -(-self.chunks * dtype.itemsize * math.prod(shape) // _ALIGNMENT) * _ALIGNMENT)
                for name, dtype, shape in parts]


def plan_of(values: Mapping[str, Any]) -> Plan:
    """Returns the plan that `Plan.values` tells of."""
    return Plan({name: Field(one["dtype"], tuple(one["shape"]), one["rows_max"])
                 for name, one in values["fields"].items()}, values["chunks"], values["is_uni_channel"])


def fragment_plan(spaces: Spaces, fragment_steps: int, chunks: int) -> Plan:
    """Returns the plan of what `runtime.learner.batch.assemble_batch` reads of a trajectory.

    Args:
        spaces: Of the environment.
        fragment_steps: The most steps of a fragment.
        chunks: How many fragments there is room for.
    """
    def by_step(dtype: str, *shape: int) -> Field:
        return Field(dtype, shape, fragment_steps)

    if spaces.is_pixels:
        stack = spaces.frame_stack
        # Each step's, the first one after each reset, and those that the first stack is made of.
        raw = (2 * fragment_steps + stack + 1) * math.prod(spaces.frame_shape)
        observed = {"frames": Field("uint8", (), min(raw, MESSAGE_BYTES_MAX) * 1001 // 1000 + 64),
                    "frames_shape": Field("int64", (4,)),
                    "observation_frames": by_step("int32", stack), "bootstrap_frames": by_step("int32", stack)}
    else:
        observed = {name: by_step("float32", *spaces.observation_shape)
                    for name in ("observations", "bootstrap_observations")}
    if spaces.has_action_mask:
        observed["action_masks"] = by_step("bool", spaces.output_size)
    return Plan({
        "policy_version": Field("int64"),
        "actions": by_step("int64" if spaces.is_discrete else "float32", *spaces.action_shape),
        "log_probs": by_step("float32"), "rewards": by_step("float64"), "terminated": by_step("bool"),
        "bootstrap_steps": by_step("int64"), **observed}, chunks)


def row_count(name: str) -> str:
    """Returns the name of the channel that counts a field's rows."""
    return f"{name}:rows"
