"""The money of the rounds: what a row says of it, and what becomes of a round that does not end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.errors import BudgetError
from runtime.interfaces import CostMeter, EventSink, RoundBill


class Books:
    """The meter, and the ledger on disk that follows it.

    Attributes:
        meter: Reserves and settles.
        save: Puts the meter's state on disk.
    """

    def __init__(self, meter: CostMeter, events: EventSink, save: Callable[[], None]) -> None:
        """Takes over the meter as it is."""
        self.meter, self._events, self.save = meter, events, save

    @property
    def promised_usd(self) -> float:
        """What is spent and reserved."""
        return self.meter.spent_usd + self.meter.reserved_usd

    def columns(self, bills: Sequence[RoundBill], round_reserved_usd: float) -> dict[str, float]:
        """The dollars of a round's row.

        Args:
            bills: Of all attempts at the round.
            round_reserved_usd: The most that was reserved at once.
        """
        return {
            **{name: sum(getattr(bill, name) for bill in bills) for name in vars(bills[0])},
            "spent_usd": self.meter.spent_usd,
            "reserved_usd": self.meter.reserved_usd,
            "round_reserved_usd": round_reserved_usd,
        }

    def close_interrupted(self, actors_started: int, seconds: float) -> None:
        """Settles a round that does not end; its learner is billed for the time that passed here."""
        try:
            self.meter.close_round(actors_started=actors_started, seconds=seconds)
        except BudgetError as error:
            self._events.append("reservation_exceeded", error=str(error))
        self.forfeit()

    def forfeit(self) -> None:
        """Counts all that is still reserved as spent."""
        self.meter.forfeit()
        self.save()
