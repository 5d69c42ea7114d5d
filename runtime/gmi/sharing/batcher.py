"""The batcher: a trainer's batches, cut from chunks or stacked of them."""

from __future__ import annotations

import mmap
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from runtime.gmi.sharing.control import Kind, Link, Message
from runtime.gmi.sharing.plan import Plan, row_counts


class Range(NamedTuple):
    """Samples of one agent that follow one another: from the first to the last, both included."""

    agent: int
    first: int
    last: int


@dataclass(frozen=True)
class Experience:
    """A batch of samples; its arrays are the caller's.

    Attributes:
        fields: By name ``[samples, …]``; of fields with ``rows_max`` all samples' rows, one sample's after another's.
        row_counts: Of these fields, each sample's rows, int64 ``[samples]``.
        ranges: Whose samples these are, in their order.
    """

    fields: dict[str, np.ndarray]
    row_counts: dict[str, np.ndarray]
    ranges: list[Range]


class Batcher:
    """Makes batches of one size, each sample in one of them, as chunks come.

    Chunks are copied into the batch as soon as it is waited for, so that agents can write on.
    """

    def __init__(self, control_fd: int, plan: Plan, samples: int) -> None:
        """Joins the instances that share experience.

        Args:
            control_fd: Descriptor of the socket that `Migrator.add_trainer` has returned.
            plan: The same in all instances.
            samples: Size of a batch.

        Raises:
            SharingError: The others have another plan, or are gone.
        """
        self._plan, self._link, self._samples = plan, Link(control_fd, plan, mmap.ACCESS_READ), samples
        self._channels = [plan.channels(self._link.memory, agent * plan.agent_bytes) for agent in range(plan.agents)]
        self._queue: deque[Message] = deque()
        self._cut = 0  # Samples of the queue's first chunk that are in a batch already.
        self._begin()

    def take(self, timeout_s: float) -> Experience | None:
        """Returns the next batch; None if it is not full in time, and then the next call goes on filling it.

        Raises:
            SharingError: The migrator is gone.
        """
        give_up_s = time.monotonic() + timeout_s
        while not self._is_filled():
            messages = self._link.receive(give_up_s - time.monotonic())
            self._queue.extend(messages)
            if not messages and time.monotonic() >= give_up_s:
                return None
        batch = Experience(
            {name: np.concatenate(value) if isinstance(value, list) else value for name, value in self._batch.items()},
            self._row_counts, self._ranges)
        self._begin()
        return batch

    def close(self) -> None:
        """Leaves; what was not handed out is lost."""
        self._link.close()

    def _begin(self) -> None:
        """Makes room for a batch."""
        self._batch: dict[str, np.ndarray | list[np.ndarray]] = {}
        self._row_counts: dict[str, np.ndarray] = {}
        self._ranges: list[Range] = []
        self._filled = 0
        for name, field in self._plan.fields.items():
            if field.rows_max is None:
                self._batch[name] = np.empty((self._samples, *field.shape), field.dtype)
            else:
                self._batch[name], self._row_counts[name] = [], np.empty(self._samples, np.int64)

    def _is_filled(self) -> bool:
        """Copies what has come into the batch; returns whether it is full."""
        done = []
        while self._queue and self._filled < self._samples:
            chunk = self._queue[0]
            count = min(chunk.size - self._cut, self._samples - self._filled)
            self._copy(chunk, count)
            self._filled += count
            self._cut += count
            if self._cut == chunk.size:
                done.append(Message(Kind.DONE, chunk.agent, chunk.slot))
                self._queue.popleft()
                self._cut = 0
        if done:
            self._link.send(done)
        return self._filled == self._samples

    def _copy(self, chunk: Message, count: int) -> None:
        channels = self._channels[chunk.agent]
        source = (chunk.slot, slice(self._cut, self._cut + count))
        target = slice(self._filled, self._filled + count)
        for name, into in self._batch.items():
            if isinstance(into, list):
                counts = self._row_counts[name][target] = channels[row_counts(name)][source]
                into.extend(rows[:rows_here].copy()
                            for rows, rows_here in zip(channels[name][source], counts, strict=True))
            else:
                into[target] = channels[name][source]
        first = chunk.first + self._cut
        last = first + count - 1
        if self._ranges and (self._ranges[-1].agent, self._ranges[-1].last + 1) == (chunk.agent, first):
            first = self._ranges.pop().first
        self._ranges.append(Range(chunk.agent, first, last))
