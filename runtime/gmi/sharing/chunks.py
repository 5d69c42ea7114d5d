"""Chunks of experience in shared memory: a dispenser writes them, field by field, and a batcher reads them."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np

from runtime.errors import RunError
from runtime.gmi.sharing.plan import ChunkPlan, row_count


class SharingError(RunError):
    """Instances cannot share experience: written or stored data does not match the plan."""


class Dispenser:
    """A serving instance's access to the memory."""

    def __init__(self, descriptor: int, plan: ChunkPlan) -> None:
        """Maps the memory.

        Args:
            descriptor: Descriptor of the memory, which is not closed.
            plan: The same in all instances.

        Raises:
            OSError: The memory cannot be mapped.
            ValueError: The memory is smaller than the plan says.
        """
        self._plan, self._channels = plan, plan.channels(mmap.mmap(descriptor, plan.size))

    def write(self, chunk: int, fields: Mapping[str, np.ndarray]) -> None:
        """Writes a chunk, each field into its channel.

        Args:
            chunk: Number of the chunk.
            fields: All fields of the plan; fields with ``rows_max`` are ``[rows, …]``. Others are ignored.

        Raises:
            SharingError: A field is missing, or does not match the plan.
        """
        for name, field in self._plan.fields.items():
            value = fields.get(name)
            has_rows, rows_max = field.rows_max is not None, field.rows_max or 0
            if (
                value is None
                or value.dtype != np.dtype(field.dtype)
                or value.ndim != len(field.shape) + has_rows
                or value.shape[has_rows:] != field.shape
                or has_rows
                and len(value) > rows_max
            ):
                found = "nothing" if value is None else f"{value.dtype}{list(value.shape)}"
                shape = ", ".join(
                    [f"0 to {rows_max}"] * has_rows + [f"{length}" for length in field.shape]
                )
                raise SharingError(f"{name}: {found}; the plan says {field.dtype}[{shape}]")
            if has_rows:
                self._channels[name][chunk, : len(value)] = value
                self._channels[row_count(name)][chunk] = len(value)
            else:
                self._channels[name][chunk] = value


class Batcher:
    """A trainer's access to the memory."""

    def __init__(self, descriptor: int, plan: ChunkPlan) -> None:
        """Maps the memory for reading; see `Dispenser`."""
        self._plan, self._channels = (
            plan,
            plan.channels(mmap.mmap(descriptor, plan.size, access=mmap.ACCESS_READ)),
        )

    def take(self, chunk: int) -> dict[str, np.ndarray]:
        """Returns the fields of a chunk as views of the memory, valid until the chunk is overwritten.

        Raises:
            SharingError: The chunk has more rows than the plan allows.
        """
        found = {}
        for name, field in self._plan.fields.items():
            value = self._channels[name][chunk]
            if field.rows_max is not None:
                rows = int(self._channels[row_count(name)][chunk])
                if not 0 <= rows <= field.rows_max:
                    raise SharingError(f"{name}: {rows} rows; the plan says 0 to {field.rows_max}")
                value = value[:rows]
            found[name] = value
        return found
