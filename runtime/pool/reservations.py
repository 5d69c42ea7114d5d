"""What a pool's calls in flight may cost at most: actors, and running resources, which calls share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice

from runtime.errors import BudgetError
from runtime.fleet.flight import Flight
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Limits, Work
from runtime.pool.records import Call
from runtime.training.opening import Run
from runtime.training.round_money import RoundMoney


class Reservations:
    """Reserves the worst case of calls, and running resources until the last deadline of any call in flight."""

    def __init__(self, run: Run, flight: Flight, save_ledger: Callable[[], None]) -> None:
        """Starts with nothing reserved."""
        self._flight = flight
        self._budget_usd = run.experiment.budget.usd
        self._money = RoundMoney(
            run.experiment,
            run.resources.meter,
            run.events,
            save_ledger,
            concurrency=flight.concurrency,
        )
        self._opened_s: float | None = None
        self._until_s = self._standing_usd = 0.0
        self._counted_s = time.monotonic()

    @contextmanager
    def of_call(self, number: int, actors: int, until_s: float) -> Iterator[list[Work]]:
        """A block for which the worst case of a call's actors is reserved, until its deadline.

        Actors that it does not start are released, also after Ctrl-C.

        Raises:
            BudgetError: It does not fit; nothing is reserved.
        """
        meter = self._money.meter
        is_first = not self._flight.in_flight
        works = [Work(ACTOR, slot) for slot in islice(self._flight.free_slots(), actors)]
        limits = self._money.choose_limits(number, actors)
        free = (
            f"${meter.free_usd:.6f} are free of ${self._budget_usd:g}, and calls in flight hold "
            f"${meter.reserved_usd:.6f}"
        )
        try:
            is_open = self._open(until_s if is_first else max(until_s, self._until_s), limits)
            granted = meter.reserve(works) if is_open else 0
            if not is_open and not is_first:
                self._open(self._until_s, limits)
            if granted < actors:
                raise BudgetError(
                    f"the budget does not hold another call of {actors} actors, only of {granted}: {free}; "
                    f"each actor may cost what it does until {limits.actor_s:.3g} s; nothing was started"
                )
            yield works
        finally:
            for work in set(works) - {actor.work for actor in self._flight.in_flight.values()}:
                with suppress(BudgetError):
                    meter.cancel(work)
            if not self._flight.in_flight:
                self.close()

    def finish(self, call: Call) -> tuple[float, float]:
        """Learns from a finished call how long the next ones take.

        Returns:
            Its seconds, and US dollars of running resources, that no earlier call has.
        """
        now_s = time.monotonic()
        phases = self._money.phases
        phases.saw(
            PhaseSeconds(actor_s=call.group.longest_s, collect_s=now_s - call.began_s, sample_s=0.0)
        )
        phases.end_round()
        if not self._flight.in_flight:
            self.close()
        seconds = now_s - max(call.began_s, self._counted_s)
        usd = self._standing_usd
        self._counted_s = now_s
        self._standing_usd = 0.0
        return seconds, usd

    def close(self) -> None:
        """Settles running resources since the first of the overlapping calls."""
        if self._opened_s is None:
            return
        before_usd = self._money.meter.spent_usd
        seconds = time.monotonic() - self._opened_s
        self._opened_s = None
        self._money.close_standing(seconds)
        self._standing_usd += self._money.meter.spent_usd - before_usd

    def _open(self, until_s: float, limits: Limits) -> bool:
        """Settles running resources until now, and reserves them until then; returns whether they fit."""
        self.close()
        now_s = time.monotonic()
        limits = replace(limits, collect_s=max(0.0, until_s - now_s))
        if not self._money.meter.open_standing(limits):
            return False
        self._opened_s = now_s
        self._until_s = until_s
        return True
