"""The money of rounds: limits that the budget holds, a row's costs, and the costs of a round that does not finish."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from runtime.errors import BudgetError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.limits import PhaseSeconds
from runtime.money.meter import Meter
from runtime.money.work import Limits
from runtime.records.observers import EventSink
from runtime.training.costs import make_phase_times


class RoundMoney:
    """The meter, the ledger on disk that follows it, and how long the phases of the last rounds took.

    Attributes:
        meter: Reserves and settles.
        events: Records reservations that do not fit.
        save: Puts the meter's state on disk.
        phases: Determine the limits under which the budget holds a round.
        limits: Those of the current attempt at a round, which are reserved.
    """

    def __init__(
        self,
        experiment: ResolvedExperiment,
        meter: Meter,
        events: EventSink,
        save: Callable[[], None],
        *,
        concurrency: int,
    ) -> None:
        """Takes the meter in its current state.

        Args:
            concurrency: Actors that run at once; further ones are queued.
        """
        self.meter, self.events, self.save = meter, events, save
        self.phases = make_phase_times(experiment, meter.limits, is_billed=meter.is_billed)
        self._concurrency, self._actors_max = concurrency, experiment.scaler.most_actors
        self._deadline_s = experiment.fleet.round_deadline_s * self._waves(self._actors_max)
        self.limits = meter.limits

    @property
    def promised_usd(self) -> float:
        """Dollars spent and reserved."""
        return self.meter.spent_usd + self.meter.reserved_usd

    def choose_limits(
        self, round_index: int, actors: int, *, detects: bool = False, evaluates: bool = False
    ) -> Limits:
        """Returns the first limits with which the budget holds a round of this many actors, or else the last ones.

        Args:
            detects: Whether the detector is to run.
            evaluates: Whether an evaluation may use time of the round.
        """
        before, chosen = self.limits, self.meter.limits
        for chosen in self.phases.choices(detects=detects, evaluates=evaluates):
            if self.meter.fits(actors, chosen):
                break
        if chosen.is_tightened and chosen.factor != before.factor:
            self.events.append(
                "limits_tightened",
                round_index=round_index,
                **vars(chosen),
                free_usd=self.meter.free_usd,
            )
        self.limits = chosen
        return chosen

    @property
    def enforced(self) -> Limits:
        """The limits of the current attempt that this machine's clock enforces.

        Where the work is billed, the clock enforces tightened limits. Actors are the exception, because AWS Lambda
        cannot be asked to end one earlier. Elsewhere, tightened limits only reserve: a busy machine ends nothing.
        """
        whole = self.meter.limits
        if not self.meter.is_billed:
            return replace(whole, collect_s=self._deadline_s)
        collect_s = min(self._deadline_s, self.limits.collect_s)
        return replace(self.limits, actor_s=whole.actor_s, collect_s=collect_s)

    def saw_collection(self, seconds: float, actors: int) -> None:
        """Records the wait for this number of actors, scaled to the most actors; some are queued."""
        scale = self._waves(self._actors_max) / self._waves(actors)
        self.phases.saw(PhaseSeconds(collect_s=seconds * scale))

    def _waves(self, actors: int) -> int:
        return math.ceil(actors / self._concurrency)

    def tell_exhausted(self, round_index: int, wanted: int) -> None:
        """Records that the budget does not hold a round, and the number of actors wanted for it."""
        self.events.append(
            "budget_exhausted", round_index=round_index, wanted=wanted, free_usd=self.meter.free_usd
        )

    def tell_shrunk(self, round_index: int, wanted: int, granted: int) -> None:
        """Records that the budget holds fewer actors than are wanted."""
        self.events.append(
            "round_shrunk",
            round_index=round_index,
            wanted=wanted,
            granted=granted,
            free_usd=self.meter.free_usd,
        )

    def is_lost(self, round_index: int, error: BudgetError) -> bool:
        """Returns whether a billed round exceeded tightened limits, and records it.

        Such a round is lost and the run ends for lack of budget: its update was cut, so there is no policy after it.
        """
        is_lost = self.limits.is_tightened and self.meter.is_billed
        if is_lost:
            self.events.append(
                "round_lost",
                round_index=round_index,
                error=str(error),
                factor=self.limits.factor,
                reason="the budget held it under tightened limits only",
            )
        return is_lost

    def close_standing(self, seconds: float) -> None:
        """Settles running resources after ``seconds``, at most what was reserved for them."""
        try:
            self.meter.close_round(seconds)
        except BudgetError as error:
            self.events.append("reservation_exceeded", error=str(error))

    def forfeit(self, ran_s: float) -> None:
        """Counts all remaining reservations as spent, as far as their work can have run in these seconds."""
        self.meter.forfeit(ran_s)
        self.save()
