"""Durations and time limits of a round's parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

TimeLimit = Callable[[float, str], AbstractContextManager[None]]
"""Takes seconds and a name; the context raises `BudgetError` when its block takes longer."""


@dataclass(frozen=True)
class Timing:
    """Clock and limits of a run.

    Attributes:
        limit: Ends work that exceeds its reserved time.
        clock: Monotonic seconds.
    """

    limit: TimeLimit = lambda seconds, what: nullcontext()
    clock: Callable[[], float] = time.monotonic
