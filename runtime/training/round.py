"""A round until its row is written: the record that its pacing fills, and the columns of its row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runtime.detector.interfaces import Detected
from runtime.fleet.actors import ActorTally
from runtime.money.meter import Meter
from runtime.money.work import RoundBill
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.evaluations import Decided
from runtime.training.updating import RoundTraining, mean


@dataclass
class Round:
    """One round until its row is written, with its rejected attempts.

    Attributes:
        policy_version: The newest version when it began.
        started_s: When it began, by the clock.
        decision: The scaler's; until it has decided, the actors that start meanwhile.
        measured: The signals of that decision; None if nothing was measured in time.
        actor_count: Number of actors that it had.
        attempts_raised: Rejected attempts in which every try of some slot raised.
        tally: Counts of its invocations.
        training: Its updates.
        collect_s: Seconds of waiting for actors.
        bills: Bills of its attempts.
        most_reserved_usd: The highest reservation at any time.
    """

    round_index: int
    policy_version: int
    started_s: float
    decision: ScalingDecision
    is_decided: bool = False
    measured: Measured | None = None
    actor_count: int = 0
    attempts_raised: int = 0
    tally: ActorTally = field(default_factory=ActorTally)
    training: RoundTraining = field(default_factory=RoundTraining)
    collect_s: float = 0.0
    bills: list[RoundBill] = field(default_factory=list)
    most_reserved_usd: float = 0.0

    def row(
        self, decided: Decided, meter: Meter, *, env_steps_total: int, round_s: float
    ) -> RoundRow:
        """Returns the row of the finished round; `runtime.records.rows` explains the numbers.

        Args:
            decided: The evaluation that it collected.
            meter: Has billed it.
            env_steps_total: Environment steps trained on since the run's start.
            round_s: Seconds of the round.
        """
        training, decision, measured = self.training, self.decision, self.measured
        detected = measured.detected if measured else Detected()
        staleness = np.concatenate(training.staleness)
        return RoundRow(
            round_index=self.round_index,
            policy_version=self.policy_version,
            eigenvalue_min=detected.eigenvalue_min,
            eigenvalue_max=detected.eigenvalue_max,
            convexity_ratio=detected.convexity_ratio,
            hessian_products=detected.products if measured else None,
            product_samples=measured.samples if measured else None,
            boosting_score=decision.boosting_score,
            decay_weight=decision.decay_weight,
            actor_count_wanted=decision.actor_count,
            actor_count=self.actor_count,
            env_steps_total=env_steps_total,
            evaluation_return_mean=decided.evaluation.return_mean if decided.evaluation else None,
            evaluation_round=decided.policy_round,
            evaluated_steps=decided.steps,
            **vars(training.mean_metrics),
            updates=len(training.metrics),
            staleness_mean=float(staleness.mean()),
            staleness_max=int(staleness.max()),
            replayed_fraction=training.replayed / len(staleness),
            gradient_steps=training.gradient_steps,
            samples_trained=training.samples_trained,
            collect_s=self.collect_s,
            learn_s=training.learn_s,
            detect_s=measured.seconds if measured else None,
            evaluate_s=decided.seconds,
            round_s=round_s,
            **episode_columns(training),
            **tally_columns(self.tally),
            **{
                name: sum(getattr(bill, name) for bill in self.bills)
                for name in vars(self.bills[0])
            },
            spent_usd=meter.spent_usd,
            reserved_usd=meter.reserved_usd,
            round_reserved_usd=self.most_reserved_usd,
            **training.columns,
        )


def episode_columns(training: RoundTraining) -> dict[str, Any]:
    """Returns what a round's trajectories brought, by the row's names."""
    returns = training.episode_returns
    return {
        "actors_returned": training.trajectories,
        "env_steps": training.env_steps,
        "episode_return_mean": mean(returns),
        "episode_length_mean": mean(training.episode_lengths),
        "episodes_finished": len(returns),
        "episodes_spanning_versions": training.episodes_spanning_versions,
        "episodes_dropped": training.episodes_dropped,
    }


def tally_columns(tally: ActorTally) -> dict[str, Any]:
    """Returns what a round's actors used and lost, by the row's names."""
    return {
        "actors_failed": tally.failed,
        "actors_late": tally.late,
        "actors_billed": len(tally.billed_s),
        "actor_billed_s_mean": mean(tally.billed_s),
        "actor_billed_s_max": max(tally.billed_s, default=None),
        "actor_cpu_s_mean": mean(tally.cpu_s),
        "actors_waited_s": tally.waited_s,
        "lost_steps": tally.lost_steps,
        "replayed_steps": tally.replayed_steps,
    }
