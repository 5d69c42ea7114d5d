"""Durations and time limits of a round's parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from runtime.ports.money import WorkTimes

TimeLimit = Callable[[float, str], AbstractContextManager[None]]
"""Takes seconds and a name; the context raises `BudgetError` when its block takes longer."""


@dataclass(frozen=True)
class Timing:
    """Clock, limits and billed seconds of a run.

    Attributes:
        times: Billed seconds of the learner's work.
        limit: Ends work that exceeds its reserved time.
        clock: Monotonic seconds.
    """

    times: WorkTimes = field(default_factory=WorkTimes)
    limit: TimeLimit = lambda seconds, what: nullcontext()
    clock: Callable[[], float] = time.monotonic
