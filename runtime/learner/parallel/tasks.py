"""What the first process tells the others: a pickle each, from a parent to its own children."""

from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Literal

from runtime.interfaces import Gradients, TrainingSamples
from runtime.learner import LearnerSpec

_KEPT = (TrainingSamples, Gradients)
"""What a call returns and a later one may take: it is not sent, since every process has its own."""


@dataclass(frozen=True)
class Make:
    """Make a learner."""

    spec: LearnerSpec


@dataclass(frozen=True)
class Call:
    """Call a method of the learner.

    Attributes:
        method: Its name.
        arguments: By position.
        options: By name.
        number: Under which to keep what it returns, if that can be taken by a later call.
        forgotten: Numbers that no later call takes.
    """

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    number: int
    forgotten: tuple[int, ...]


Task = Make | Call | Literal["fingerprint", "end"]
Writer = Callable[[IO[bytes]], None]
"""Writes a task to a process: straight from the arrays' memory, since a batch may be large."""


class Kept:
    """The first process' side of what is kept in all of them: which object has which number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._counter = itertools.count()
        self._forgotten: list[int] = []

    def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Call:
        """Returns the task that calls a method in the others."""
        forgotten, self._forgotten = self._forgotten, []
        return Call(method, arguments, options, next(self._counter), tuple(forgotten))

    def keep(self, call: Call, result: object) -> None:
        """Notes what a call returned here; the number is free when nobody here holds the object any more."""
        if isinstance(result, _KEPT):
            self._numbers[id(result)] = call.number
            weakref.finalize(result, self._forget, id(result)).atexit = False

    def writer(self, task: Task) -> Writer:
        """Returns what writes a task; kept objects as their numbers."""
        return lambda stream: _Pickler(stream, self._numbers).dump(task)

    def _forget(self, identity: int) -> None:
        self._forgotten.append(self._numbers.pop(identity))


class Mirror:
    """Another process' side: reads tasks, and holds what its own calls returned, by number."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept: dict[int, object] = {}

    def read(self) -> Task:
        """Returns the next task; the end if the first process says nothing more."""
        try:
            task: Task = _Unpickler(self._stream, self._kept).load()
        except (EOFError, pickle.UnpicklingError):
            return "end"
        return task

    def do(self, call: Call, learner: Any) -> None:
        """Calls the method, and keeps what it returns."""
        for number in call.forgotten:
            del self._kept[number]
        result = getattr(learner, call.method)(*call.arguments, **call.options)
        if isinstance(result, _KEPT):
            self._kept[call.number] = result


class _Pickler(pickle.Pickler):
    def __init__(self, stream: IO[bytes], numbers: dict[int, int]) -> None:
        super().__init__(stream, protocol=5)
        self._numbers = numbers

    def persistent_id(self, value: Any) -> int | None:
        return self._numbers.get(id(value)) if isinstance(value, _KEPT) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes], kept: dict[int, object]) -> None:
        super().__init__(stream)
        self._kept = kept

    def persistent_load(self, number: int) -> object:
        return self._kept[number]
