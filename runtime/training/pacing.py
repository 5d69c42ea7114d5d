"""The pacing of rounds: the order of a round's actors and updates, and what all orders share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from lambda_actor.errors import ActorError
from runtime.errors import RunError
from runtime.records.rows import RoundRow
from runtime.training.evaluations import Decided
from runtime.training.roles import Roles
from runtime.training.round import Round

Meanwhile = Callable[[], None]
"""Work that is done while actors play."""
REJECTED_ROUNDS_MAX = 3
"""Attempts at one round before the run ends."""


class Pacing(ABC):
    """Runs rounds with the roles of a training; subclasses decide the order.

    Attributes:
        checkpoint_every_s: Shortest time between two checkpoints; 0 = one in each round.
    """

    checkpoint_every_s = 0.0

    def __init__(self, roles: Roles) -> None:
        """Takes those who do the work."""
        self._roles = roles
        self._money = roles.money
        self._flight = roles.rollouts.flight
        self._clock = roles.rollouts.flight.clock
        self._opened_s = self._clock()

    @abstractmethod
    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end.

        Args:
            meanwhile: Called while the round's first actors play, before its update.

        Returns:
            Its row; None if the budget does not hold the round.

        Raises:
            ActorsKeepFailingError: The circuit breaker tripped, or too many attempts were rejected.
            BudgetError: The round took longer than its reserved worst case.
        """

    def close(self) -> None:
        """Ends all remaining work, whatever ended the run: settles actors in flight and an open round."""
        try:
            self._flight.end("the run ends")
            self._flight.tidy()
        except (ActorError, RunError) as error:
            # Their reservations then count as far as they can have run.
            self._money.events.append(
                "actors_not_settled", error=f"{type(error).__name__}: {error}"
            )
        self._money.forfeit(self._clock() - self._opened_s)
        self._roles.detection.close()

    def _reject(self, current: Round, *, actor_count: int, actors_returned: int) -> None:
        """Rejects an attempt at a round: nothing of it is trained on, and no open episode is consumed."""
        self._money.events.append(
            "round_rejected",
            round_index=current.round_index,
            actor_count=actor_count,
            actors_returned=actors_returned,
        )
        self._bill(current)
        self._money.save()

    def _end(self, current: Round, decided: Decided) -> RoundRow:
        """Bills a finished round, and returns its row."""
        round_s = self._clock() - current.started_s
        self._bill(current)
        steps = self._roles.progress.env_steps_total
        return current.row(decided, self._money.meter, env_steps_total=steps, round_s=round_s)

    def _bill(self, current: Round) -> None:
        """Bills an attempt at a round until now. Actors in flight continue."""
        current.bills.append(self._money.meter.close_round(self._clock() - self._opened_s))
