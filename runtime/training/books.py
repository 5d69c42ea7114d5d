"""The money of the rounds: a row's costs, and the costs of a round that does not finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runtime.errors import BudgetError
from runtime.money.meter import Meter
from runtime.money.work import Limits, RoundBill
from runtime.records.observers import EventSink


class Books:
    """The meter, and the ledger on disk that follows it.

    Attributes:
        meter: Reserves and settles.
        events: Records reservations that do not fit.
        save: Puts the meter's state on disk.
    """

    def __init__(self, meter: Meter, events: EventSink, save: Callable[[], None]) -> None:
        """Takes the meter in its current state."""
        self.meter, self.events, self.save = meter, events, save
        self._factor = 0.0

    @property
    def promised_usd(self) -> float:
        """Dollars spent and reserved."""
        return self.meter.spent_usd + self.meter.reserved_usd

    def account(self, bills: Sequence[RoundBill], round_reserved_usd: float) -> dict[str, Any]:
        """Returns the dollars of a finished round, by the names of its row.

        Args:
            bills: Bills of all attempts at the round.
            round_reserved_usd: The highest reservation at any time.
        """
        return {
            **{name: sum(getattr(bill, name) for bill in bills) for name in vars(bills[0])},
            "spent_usd": self.meter.spent_usd,
            "reserved_usd": self.meter.reserved_usd,
            "round_reserved_usd": round_reserved_usd,
        }

    def choose_limits(self, choices: Iterable[Limits], *, actors: int, round_index: int) -> Limits:
        """Returns the first limits with which the budget holds a round of this many actors, or else the last ones."""
        chosen = self.meter.limits
        for chosen in choices:
            if self.meter.fits(actors, chosen):
                break
        if chosen.is_tightened and chosen.factor != self._factor:
            self.events.append(
                "limits_tightened",
                round_index=round_index,
                **vars(chosen),
                free_usd=self.meter.free_usd,
            )
        self._factor = chosen.factor
        return chosen

    def tell_exhausted(self, round_index: int, wanted: int) -> None:
        """Records that the budget does not hold a round, and the number of actors wanted for it."""
        self.events.append(
            "budget_exhausted", round_index=round_index, wanted=wanted, free_usd=self.meter.free_usd
        )

    def is_lost(self, round_index: int, limits: Limits, error: BudgetError) -> bool:
        """Returns whether a billed round exceeded tightened limits, and records it.

        Such a round is lost and the run ends for lack of budget: its update was cut, so there is no policy after it.
        """
        is_lost = limits.is_tightened and self.meter.is_billed
        if is_lost:
            self.events.append(
                "round_lost",
                round_index=round_index,
                error=str(error),
                factor=limits.factor,
                reason="the budget held it under tightened limits only",
            )
        return is_lost

    def close_interrupted(self, seconds: float) -> None:
        """Settles a round that does not finish; its learner is billed for ``seconds``."""
        try:
            self.meter.close_round(seconds)
        except BudgetError as error:
            self.events.append("reservation_exceeded", error=str(error))
        self.forfeit()

    def forfeit(self) -> None:
        """Counts all remaining reservations as spent."""
        self.meter.forfeit()
        self.save()
