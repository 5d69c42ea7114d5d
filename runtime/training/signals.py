"""Signals and time limits: a run ends between its steps, never inside one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lambda_actor.guarding import TimeIsUp, time_limit
from runtime.errors import ENDING_SIGNALS, BudgetError, Interrupted


class Signals:
    """Turns `runtime.errors.ENDING_SIGNALS` into `Interrupted`, but never in the middle of a shielded block."""

    def __init__(self) -> None:
        self._shields = 0
        self._waiting: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in ENDING_SIGNALS:
            # Signals that were ignored from the start, as under nohup, remain ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Delays signals that arrive in the block until its end."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
        if self._waiting is not None and not self._shields:
            self._arrived(self._waiting, None)

    def ignore(self) -> None:
        """Ignores all signals from now on: the remaining work is bounded and must be done."""
        self._shields += 1

    @contextmanager
    def time_limit(self, seconds: float, what: str) -> Iterator[None]:
        """Ends a block that exceeds its reserved time with `BudgetError`."""
        try:
            with time_limit(seconds):
                yield
        except TimeIsUp:
            raise BudgetError(
                f"{what} took longer than the {seconds:.1f} s that were left of "
                "learner.update_timeout_s; raise that"
            ) from None

    def _arrived(self, number: int, _frame: object) -> None:
        if self._shields:
            self._waiting = number
        else:
            # The remaining work is bounded and must be done, so a second signal does not cut it.
            self.ignore()
            raise Interrupted(number)
