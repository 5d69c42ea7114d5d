"""The running resources of a pool, which are reserved while any of its calls is in flight."""

from __future__ import annotations

import time
from dataclasses import replace

from runtime.money.work import Limits
from runtime.training.round_money import RoundMoney


class StandingWindow:
    """The time for which running resources are reserved.

    Attributes:
        until_s: Its end, by the clock; that of the last one if none is open.
        is_open: Whether they are reserved now.
    """

    def __init__(self, money: RoundMoney) -> None:
        """Starts closed."""
        self._money = money
        self._opened_s = self.until_s = self._usd = 0.0
        self.is_open = False

    def open(self, until_s: float, limits: Limits) -> bool:
        """Settles running resources until now, and reserves them until then; returns whether they fit.

        Actors are reserved until their limit.
        """
        self.close()
        now_s = time.monotonic()
        if self._money.meter.open_standing(replace(limits, collect_s=max(0.0, until_s - now_s))):
            self._opened_s, self.until_s, self.is_open = now_s, until_s, True
        return self.is_open

    def close(self) -> None:
        """Settles running resources since the first of the overlapping calls; the next row contains them."""
        if not self.is_open:
            return
        before_usd = self._money.meter.spent_usd
        self.is_open = False
        self._money.close_standing(time.monotonic() - self._opened_s)
        self._usd += self._money.meter.spent_usd - before_usd

    def take_usd(self) -> float:
        """Returns what they have cost since the last call of this."""
        usd, self._usd = self._usd, 0.0
        return usd
