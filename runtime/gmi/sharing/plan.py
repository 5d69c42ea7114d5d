"""What a sample consists of, and where each field lies in the memory that instances share."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

_RECORD = ""
"""Name of the one channel that all fields lie in."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class Field:
    """A field of a sample.

    Attributes:
        dtype: As numpy writes it.
        shape: Of a sample's value; of one row if there are ``rows_max``.
        rows_max: None if each sample has one value; else it has 0 to so many rows, such as the observations after
            which a fragment goes on. Rows that are not there take no memory.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    rows_max: int | None = None


@dataclass(frozen=True)
class Plan:
    """The same in all instances that share experience.

    Each agent has room for ``chunks`` × ``chunk_samples`` samples. A sample is whatever travels as a whole: a step of
    one environment, or a fragment whose fields are ``[T, …]``.

    Attributes:
        fields: By name.
        agents: Serving instances.
        chunk_samples: Samples that move at once.
        chunks: Chunks that an agent may be ahead; at least 2, or it waits while each is taken.
        is_uni_channel: All fields lie in one channel, sample after sample, instead of one channel for each. The
            baseline of the paper's table 8, with chunks of one step.
    """

    fields: Mapping[str, Field]
    agents: int
    chunk_samples: int
    chunks: int
    is_uni_channel: bool = False

    @property
    def agent_bytes(self) -> int:
        """Bytes of one agent's channels."""
        return sum(size for _, _, _, size in self._blocks())

    def channels(self, memory: mmap.mmap, offset: int = 0) -> dict[str, np.ndarray]:
        """Returns an agent's channels as views of its memory.

        Args:
            memory: Shared by the instances.
            offset: Bytes before the agent's.

        Returns:
            By field ``[chunks, chunk_samples, …]``; ``…`` begins with ``rows_max`` if there is one, and `row_counts`
            names the channel that says how many there are, int64 ``[chunks, chunk_samples]``.
        """
        found: dict[str, np.ndarray] = {}
        for name, dtype, shape, size in self._blocks():
            found[name] = np.ndarray((self.chunks, self.chunk_samples, *shape), dtype, memory, offset)
            offset += size
        if self.is_uni_channel:
            return {name: found[_RECORD][name] for name in found[_RECORD].dtype.names or ()}
        return found

    def to_json(self) -> str:
        """Returns what `differences` reads."""
        return json.dumps(asdict(self))

    def differences(self, text: str) -> str:
        """Tells in what another plan, as JSON, is not this one; "" if they are the same."""
        ours, theirs = json.loads(self.to_json()), json.loads(text)
        ours |= {f"field {name}": value for name, value in ours.pop("fields").items()}
        theirs |= {f"field {name}": value for name, value in theirs.pop("fields").items()}
        return "; ".join(f"{name}: {ours.get(name)} here, {theirs.get(name)} there"
                         for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name))

    def _blocks(self) -> list[tuple[str, np.dtype, tuple[int, ...], int]]:
        """The channels in their order in memory: name, dtype and shape of a sample's value, and bytes in all."""
        parts: list[tuple[str, np.dtype, tuple[int, ...]]] = []
        for name, field in self.fields.items():
            if np.dtype(field.dtype).hasobject:
                raise ValueError(f"{name}: Python objects cannot be shared between processes")
            if field.rows_max is None:
                parts.append((name, np.dtype(field.dtype), field.shape))
            else:
                parts += [(name, np.dtype(field.dtype), (field.rows_max, *field.shape)),
                          (row_counts(name), np.dtype(np.int64), ())]
        if self.is_uni_channel:
            parts = [(_RECORD, np.dtype(parts, align=True), ())]
        samples = self.chunks * self.chunk_samples
        return [(name, dtype, shape, -(-samples * dtype.itemsize * math.prod(shape) // _ALIGNMENT) * _ALIGNMENT)
                for name, dtype, shape in parts]


def row_counts(name: str) -> str:
    """Returns the name of the channel that counts a field's rows."""
    return f"{name}:rows"
