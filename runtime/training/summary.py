"""The summary of a run, in `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runtime.experiment.resolved import ResolvedExperiment
from runtime.records import layout
from runtime.records.rows import RoundRow
from runtime.training.evaluations import BestPolicy
from runtime.training.opening import Backend


def summarise(
    rows: Sequence[RoundRow],
    *,
    name: str,
    experiment: ResolvedExperiment,
    backend: Backend,
    best: BestPolicy | None,
    stop_reason: str,
    error: str,
    spent_usd: float,
    session_s: float,
    was_resumed: bool,
) -> dict[str, Any]:
    """Summarizes a run; docs/reference/run_directory.md explains the keys.

    Args:
        rows: Rows of its finished rounds, in order.
        name: The experiment's name, for people.
        experiment: Resolved.
        backend: Where it took place.
        best: The best evaluated policy, which the directory holds; None if none was evaluated.
        stop_reason: Why it ended.
        error: The error; empty if there was none.
        spent_usd: Total cost, in US dollars.
        session_s: Seconds of this process' share of the run.
        was_resumed: Whether another process ran an earlier share.
    """
    evaluated = [
        (row.evaluation_round, row.evaluation_return_mean)
        for row in rows
        if row.evaluation_return_mean is not None
    ]
    finished = [row.episode_return_mean for row in rows if row.episode_return_mean is not None]
    steps = rows[-1].env_steps_total if rows else 0
    # A pool's calls choose their own lengths, and drop nothing.
    fragment_steps = 0 if experiment.learner.is_external else experiment.actor.fragment_steps
    return {
        "experiment": name,
        "environment_id": experiment.environment.id,
        "stop_reason": stop_reason,
        "error": error or None,
        "rounds": len(rows),
        "env_steps_total": steps,
        "episodes_dropped": sum(row.episodes_dropped or 0 for row in rows),
        "steps_dropped": sum(
            max(0, row.actors_returned * fragment_steps - row.env_steps) for row in rows
        ),
        "evaluation_return_mean": evaluated[-1][1] if evaluated else None,
        "evaluation_round": evaluated[-1][0] if evaluated else None,
        "evaluation_return_best": best.return_mean if best else None,
        "evaluation_round_best": best.round_index if best else None,
        "best_policy_file": layout.BEST_POLICY if best else None,
        "episode_return_mean": finished[-1] if finished else None,
        "worlds": experiment.scaler.most_actors if experiment.environment.has_worlds else None,
        "actors": sum(row.actors_billed for row in rows),
        "actors_failed": sum(row.actors_failed for row in rows),
        "cost_basis": backend.cost_basis,
        "prices_region": backend.prices.region,
        "prices_as_of": backend.prices.as_of,
        "spent_usd": spent_usd,
        "budget_usd": experiment.budget.usd,
        "usd_per_million_steps": spent_usd / steps * 1e6 if steps else None,
        "actors_cost_usd": sum(row.actors_cost_usd for row in rows),
        "provisioned_cost_usd": sum(row.provisioned_cost_usd for row in rows),
        "learner_cost_usd": sum(row.learner_cost_usd for row in rows),
        "infrastructure_cost_usd": sum(row.infrastructure_cost_usd for row in rows),
        # Cost of unfinished rounds: failed, interrupted, or forfeited because the run was killed.
        "unfinished_rounds_cost_usd": max(0.0, spent_usd - sum(row.round_cost_usd for row in rows)),
        "measured_session_s": session_s,
        "was_resumed": was_resumed,
    }
