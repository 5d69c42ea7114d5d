"""How long the parts of a round take, and may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from runtime.ports.money import WorkTimes

TimeLimit = Callable[[float, str], AbstractContextManager[None]]
"""Entered with seconds and a name around what is reserved for that long; raises `BudgetError`."""


@dataclass(frozen=True)
class Timing:
    """Clock, limits and billed seconds of a run.

    Attributes:
        times: For how long the learner's work counts in the bill.
        limit: Ends what takes longer than was reserved for it.
        clock: Monotonic seconds.
    """

    times: WorkTimes = field(default_factory=WorkTimes)
    limit: TimeLimit = lambda seconds, what: nullcontext()
    clock: Callable[[], float] = time.monotonic
