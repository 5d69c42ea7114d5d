"""Makes the row of a finished round, the only place that writes rows of trainings; a pool's share its columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime.detector.interfaces import Detected
from runtime.fleet.actors import ActorTally
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.evaluations import Decided
from runtime.training.updating import RoundTraining, mean


def finished_row(
    *,
    round_index: int,
    policy_version: int,
    decision: ScalingDecision,
    measured: Measured | None,
    actor_count: int,
    tally: ActorTally,
    training: RoundTraining,
    env_steps_total: int,
    decided: Decided,
    collect_s: float,
    round_s: float,
    account: Mapping[str, Any],
) -> RoundRow:
    """Returns the row of a finished round, including all attempts; `runtime.records.rows` explains the numbers.

    Args:
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
    detected = measured.detected if measured else Detected()
    staleness = np.concatenate(training.staleness)
    return RoundRow(
        round_index=round_index,
        policy_version=policy_version,
        eigenvalue_min=detected.eigenvalue_min,
        eigenvalue_max=detected.eigenvalue_max,
        convexity_ratio=detected.convexity_ratio,
        hessian_products=detected.products if measured else None,
        product_samples=measured.samples if measured else None,
        boosting_score=decision.boosting_score,
        decay_weight=decision.decay_weight,
        actor_count_wanted=decision.actor_count,
        actor_count=actor_count,
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
        collect_s=collect_s,
        learn_s=training.learn_s,
        detect_s=measured.seconds if measured else None,
        evaluate_s=decided.seconds,
        round_s=round_s,
        **episode_columns(training),
        **tally_columns(tally),
        **account,
        **(vars(training.aggregation) if training.aggregation else {}),
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
        "replayed_steps": training.replayed_steps,
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
    }
