"""A finished round in its parts, and the only place that turns them into a row of `rounds.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runtime.detector.interfaces import Detected
from runtime.fleet.actors import ActorTally
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.evaluations import Decided
from runtime.training.updating import RoundTraining, mean


@dataclass(frozen=True, kw_only=True)
class FinishedRound:
    """The results of a round, including all attempts; `runtime.records.rows` explains the numbers.

    Attributes:
        policy_version: Its actors' version, or the newest one when it began.
        decision: Number of actors that the scaler asked for.
        measured: The signals of that decision; None if nothing was measured in time.
        actor_count: Number of actors that it had.
        tally: Counts of its invocations.
        training: Its updates.
        env_steps_total: Environment steps trained on since the run's start.
        decided: The evaluation that it collected.
        collect_s: Seconds of waiting for actors.
        round_s: Seconds of the round.
        account: Its dollars, by the row's names.
    """

    round_index: int
    policy_version: int
    decision: ScalingDecision
    measured: Measured | None
    actor_count: int
    tally: ActorTally
    training: RoundTraining
    env_steps_total: int
    decided: Decided
    collect_s: float
    round_s: float
    account: Mapping[str, Any]

    def row(self) -> RoundRow:
        """Flattens the parts."""
        training, decided, tally = self.training, self.decided, self.tally
        detected = self.measured.detected if self.measured else Detected()
        staleness = np.concatenate(training.staleness)
        return RoundRow(
            round_index=self.round_index,
            policy_version=self.policy_version,
            eigenvalue_min=detected.eigenvalue_min,
            eigenvalue_max=detected.eigenvalue_max,
            convexity_ratio=detected.convexity_ratio,
            hessian_products=detected.products if self.measured else None,
            product_samples=self.measured.samples if self.measured else None,
            boosting_score=self.decision.boosting_score,
            decay_weight=self.decision.decay_weight,
            actor_count_wanted=self.decision.actor_count,
            actor_count=self.actor_count,
            actors_returned=training.trajectories,
            actors_failed=tally.failed,
            actors_late=tally.late,
            env_steps=training.env_steps,
            env_steps_total=self.env_steps_total,
            evaluation_return_mean=decided.evaluation.return_mean if decided.evaluation else None,
            evaluation_round=decided.policy_round,
            evaluated_steps=decided.steps,
            episode_return_mean=mean(training.episode_returns),
            episode_length_mean=mean(training.episode_lengths),
            episodes_finished=len(training.episode_returns),
            episodes_spanning_versions=training.episodes_spanning_versions,
            replayed_steps=training.replayed_steps,
            episodes_dropped=training.episodes_dropped,
            **vars(training.mean_metrics),
            updates=len(training.metrics),
            staleness_mean=float(staleness.mean()),
            staleness_max=int(staleness.max()),
            replayed_fraction=training.replayed / len(staleness),
            gradient_steps=training.gradient_steps,
            samples_trained=training.samples_trained,
            collect_s=self.collect_s,
            learn_s=training.learn_s,
            detect_s=self.measured.seconds if self.measured else None,
            evaluate_s=decided.seconds,
            actors_billed=len(tally.billed_s),
            actor_billed_s_mean=mean(tally.billed_s),
            actor_billed_s_max=max(tally.billed_s, default=None),
            actor_cpu_s_mean=mean(tally.cpu_s),
            actors_waited_s=tally.waited_s,
            lost_steps=tally.lost_steps,
            round_s=self.round_s,
            **self.account,
            **(vars(training.aggregation) if training.aggregation else {}),
        )
