"""The dispenser, with the compressor: a serving instance's samples, field by field, in chunks."""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from runtime.gmi.sharing.control import Kind, Link, Message, SharingError
from runtime.gmi.sharing.plan import Plan, row_counts


class Dispenser:
    """Writes a serving instance's samples, one channel for each field.

    Fields of one sample may come in different calls. A chunk is handed out when every field of it is there.

    Attributes:
        agent: Which serving instance this is.
        first: Sequence number that its first sample must have: 0, or where the process that it replaces has ended.
    """

    def __init__(self, control_fd: int, plan: Plan) -> None:
        """Joins the instances that share experience.

        Args:
            control_fd: Descriptor of the socket that `Migrator.add_agent` has returned.
            plan: The same in all instances.

        Raises:
            SharingError: The others have another plan, or are gone.
        """
        self._plan, self._link = plan, Link(control_fd, plan, mmap.ACCESS_WRITE)
        self.agent, self.first = self._link.hello.agent, self._link.hello.first
        self._channels = plan.channels(self._link.memory, self.agent * plan.agent_bytes)
        self._ends = dict.fromkeys(plan.fields, self.first)
        self._handed_out = self.first
        self._free: deque[int] = deque()
        # By the sequence number of their first sample, the slots of chunks that are being written.
        self._slots: dict[int, int] = {}

    def write(
        self, fields: Mapping[str, np.ndarray | Sequence[np.ndarray]], sequence: int, *, timeout_s: float
    ) -> None:
        """Writes some fields, or all, of the next samples: everything, or nothing if it raises.

        Args:
            fields: By name ``[n, …]`` with the plan's dtype; of fields with ``rows_max`` n arrays ``[k, …]``.
            sequence: Number of the first of these samples: each field's follow one another without a gap.
            timeout_s: Seconds to wait until there is room, while trainers are behind.

        Raises:
            SharingError: These fields are not what the plan says or not the next ones, one field is further ahead of
                another than the memory holds, or the migrator is gone.
            TimeoutError: There is no room: nobody takes those that there are.
        """
        counts = {name: self._checked(name, value) for name, value in fields.items()}
        if len(set(counts.values())) != 1:
            raise SharingError(f"fields of different samples: {counts}")
        for name in fields:
            if self._ends[name] != sequence:
                raise SharingError(f"{name}: sample {sequence} comes, {self._ends[name]} is the next one")
        end = sequence + next(iter(counts.values()))
        self._make_room(sequence, end, timeout_s)
        for name, value in fields.items():
            self._copy(name, value, sequence, end)
            self._ends[name] = end
        self._hand_out(self._plan.chunk_samples)

    def close(self) -> None:
        """Hands out what is complete of the last chunk, and leaves."""
        with suppress(SharingError):
            self._hand_out(1)
        self._link.close()

    def _checked(self, name: str, value: np.ndarray | Sequence[np.ndarray]) -> int:
        """Samples of a field."""
        field = self._plan.fields.get(name)
        if field is None:
            raise SharingError(f"no field {name!r} in the plan: {', '.join(self._plan.fields)}")
        for array in (value,) if field.rows_max is None else value:
            if (not isinstance(array, np.ndarray) or array.dtype != np.dtype(field.dtype)
                    or array.shape[1:] != field.shape or array.ndim == 0):
                raise SharingError(f"{name}: {getattr(array, 'dtype', type(array).__name__)}"
                                   f"{list(np.shape(array))}; the plan says {field.dtype}{list(field.shape)} of each")
            if field.rows_max is not None and len(array) > field.rows_max:
                raise SharingError(f"{name}: {len(array)} rows of a sample; the plan says {field.rows_max} at most")
        return len(value)

    def _chunk_of(self, sequence: int) -> int:
        """Number of the first sample of the chunk that a sample belongs to."""
        return sequence - (sequence - self.first) % self._plan.chunk_samples

    def _make_room(self, sequence: int, end: int, timeout_s: float) -> None:
        needed = [chunk for chunk in range(self._chunk_of(sequence), end, self._plan.chunk_samples)
                  if chunk not in self._slots]
        if len(self._slots) + len(needed) > self._plan.chunks:
            raise SharingError(f"samples {self._handed_out} to {end - 1} are not complete, more than the "
                               f"{self._plan.chunks} chunks of {self._plan.chunk_samples} hold: {self._ends}")
        give_up_s = time.monotonic() + timeout_s
        while len(self._free) < len(needed):
            messages = self._link.receive(give_up_s - time.monotonic())
            self._free.extend(message.slot for message in messages)
            if not messages and time.monotonic() >= give_up_s:
                raise TimeoutError(f"no room for samples of agent {self.agent} within {timeout_s:g} s: nobody takes "
                                   "those that there are")
        for chunk in needed:
            self._slots[chunk] = self._free.popleft()

    def _copy(self, name: str, value: np.ndarray | Sequence[np.ndarray], sequence: int, end: int) -> None:
        channel, size = self._channels[name], self._plan.chunk_samples
        for chunk in range(self._chunk_of(sequence), end, size):
            start, stop, slot = max(sequence, chunk), min(end, chunk + size), self._slots[chunk]
            part = value[start - sequence:stop - sequence]
            if self._plan.fields[name].rows_max is None:
                channel[slot, start - chunk:stop - chunk] = part
                continue
            for place, rows in enumerate(part, start - chunk):
                channel[slot, place, :len(rows)] = rows
                self._channels[row_counts(name)][slot, place] = len(rows)

    def _hand_out(self, samples_min: int) -> None:
        """Tells the migrator of what is complete, chunk by chunk."""
        complete, messages = min(self._ends.values()), []
        while (count := min(complete - self._handed_out, self._plan.chunk_samples)) >= samples_min:
            messages.append(Message(Kind.CHUNK, self.agent, self._slots.pop(self._handed_out), count,
                                    self._handed_out))
            self._handed_out += count
        if messages:
            self._link.send(messages)
