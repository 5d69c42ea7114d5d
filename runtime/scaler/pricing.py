"""Prices a finished round by its counts, so that a busy machine changes neither its seconds nor its dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


@dataclass(frozen=True)
class Priced:
    """The price of a round.

    Attributes:
        actor_s: Mean seconds of an actor; None if none ended.
        learner_s: Seconds of the updates.
        round_s: Seconds until actors of equal length are back, and of the updates.
        usd: Dollars of all of it.
    """

    actor_s: float | None
    learner_s: float
    round_s: float
    usd: float


@dataclass(frozen=True)
class Pricing:
    """Seconds and dollars of each unit of counted work; `papers.pricing` makes them.

    Attributes:
        invocation_s, step_s, cold_start_s: Of an actor: whatever its length, for each step, and for a cold start.
        gradient_step_s, sample_s: Of an update: for each gradient step, and for each of their samples.
        evaluated_step_s: Of an evaluation, for each step.
        invocation_usd, actor_usd_per_s: Of an actor: its request and its traffic, and each second.
        learner_usd_per_s: Of the learner with its disk and address, for each second.
    """

    invocation_s: float
    step_s: float
    cold_start_s: float
    gradient_step_s: float
    sample_s: float
    evaluated_step_s: float
    invocation_usd: float
    actor_usd_per_s: float
    learner_usd_per_s: float

    def price(self, row: RoundRow) -> Priced:
        """Prices a finished round; an evaluation costs what outlasts the round's actors."""
        invocations, cold_starts = row.actors_billed, row.cold_starts or 0
        steps = row.env_steps + (row.replayed_steps or 0) + (row.lost_steps or 0)
        warm_s = (
            invocations * self.invocation_s + steps * self.step_s + (row.actors_waited_s or 0.0)
        )
        actors_s = warm_s + cold_starts * self.cold_start_s
        # The slowest actor of a round that starts any is one that starts cold.
        collect_s = warm_s / max(1, invocations) + (self.cold_start_s if cold_starts else 0.0)
        learner_s = (row.gradient_steps or 0) * self.gradient_step_s
        learner_s += (row.samples_trained or 0) * self.sample_s
        evaluate_s = (row.evaluated_steps or 0) * self.evaluated_step_s
        learner_usd = self.learner_usd_per_s * (
            collect_s + learner_s + max(0.0, evaluate_s - collect_s)
        )
        return Priced(
            actors_s / invocations if invocations else None,
            learner_s,
            collect_s + learner_s,
            invocations * self.invocation_usd + actors_s * self.actor_usd_per_s + learner_usd,
        )
