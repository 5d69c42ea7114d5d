"""Shared code of the figures on whole trainings with Nitro's settings. Each training is made once for all figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.competition.run import kept
from papers.estimates import SEEDS
from papers.runs import ACTORS_USD_PER_HOUR, PAPERS_LEARNER_USD_PER_HOUR, Run
from papers.trainings import by_round, is_finished, train_all

HOPPER = "hopper-ppo"
NITRO, STATIC = "nitro", "16 actors"
DECAY_FACTORS, WINDOWS = (0.93, 0.99), (3, 10)
"""The ends of the paper's ranges, in addition to its own 0.96 and 6."""
TARGET = {"stop.target_return": 3000.0}
"""Far above the returns of fifty rounds with these settings. MinionsRL's rules need a target to measure progress."""
ARMS: dict[str, dict[str, object]] = {
    NITRO: {},
    STATIC: {"scaler.kind": "fixed", "scaler.actors_fixed": 16, "actor.provisioned": 16},
    "kungfu": {"scaler.kind": "kungfu"},
    "hydrozoa": {"scaler.kind": "hydrozoa"},
    "minions": {
        "scaler.kind": "minions",
        "scaler.scheduler": "hopper",
        "scaler.scheduler_actions": "sampled",
        **TARGET,
    },
    "minions-adapt": {"scaler.kind": "minions-adapt", **TARGET},
    **{f"d = {factor}": {"scaler.decay_factor": factor} for factor in DECAY_FACTORS},
    **{f"n = {window}": {"scaler.window_rounds": window} for window in WINDOWS},
}
"""By name, a training's overrides of experiments/paper."""
JOBS = 2
LAST_ROUNDS = 5
"""Number of last rounds whose episodes count for a training's final return."""
PARTS = ("learner", "actors", "provisioned")
KEPT = (
    "seed",
    "rounds",
    "env_steps_total",
    "modelled_s",
    "spent_usd",
    "learner_cost_usd",
    "actors_cost_usd",
    "infrastructure_cost_usd",
)
ROWS = ("actor_count", "modelled_round_s", "episode_return_mean")


def runs_of(name: str, arm: str, work: Path) -> list[Run]:
    """Returns a training for each seed, with one actor process and one learner thread each, which change no result.

    Args:
        name: A file of experiments/paper, without its extension.
        arm: A key of `ARMS`.
    """
    return [
        Run(
            f"experiments/paper/{name}.yaml",
            arm,
            "",
            seed,
            {
                "learner.threads": 1,
                "fleet.processes": 1,
                "learner.instance_types": ["p3.2xlarge"],
                **ARMS[arm],
                "seed": seed,
                **({"scaler.draws_seed": seed} if arm == "minions" else {}),
            },
            work / "trainings" / name / arm.replace(" ", "") / str(seed),
        )
        for seed in SEEDS
    ]


def trained(name: str, arms: Iterable[str], work: Path) -> dict[str, list[dict[str, Any]]]:
    """Makes a file's missing trainings. Returns the figures' data of each, by arm.

    Raises:
        SystemExit: A training has failed. Its log is next to it.
    """
    runs = {arm: runs_of(name, arm, work.resolve()) for arm in arms}
    # Seed by seed, so that an interrupted measurement has results of every arm.
    flat = sorted((run for of_arm in runs.values() for run in of_arm), key=lambda run: run.seed)
    train_all(flat, jobs=JOBS, until_s=math.inf, note=lambda: None)
    if missing := [run for run in flat if not is_finished(run.directory)]:
        sys.exit(f"{len(missing)} trainings have failed; see {missing[0].directory}.log")
    return {arm: [_short(kept(run)) for run in of_arm] for arm, of_arm in runs.items()}


def _short(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: run[name] for name in KEPT},
        "rows": {name: run["rows"][name] for name in ROWS},
    }


def final_return(run: Mapping[str, Any]) -> float:
    """Returns the mean return of the last rounds' episodes, with noisy actions."""
    return float(np.nanmean(by_round([run], "episode_return_mean")[0, -LAST_ROUNDS:]))


def cents_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Returns a training's bill with serverless actors, by part. Provisioned functions are billed for five minutes."""
    known = {
        "learner": run["learner_cost_usd"],
        "actors": run["actors_cost_usd"] + run["infrastructure_cost_usd"],
    }
    return {
        part: 100.0 * usd
        for part, usd in {**known, "provisioned": run["spent_usd"] - sum(known.values())}.items()
    }


def cents(run: Mapping[str, Any]) -> float:
    """Returns the cents of learner and actors, without provisioned functions."""
    bill = cents_of(run)
    return bill["learner"] + bill["actors"]


def all_cents(run: Mapping[str, Any]) -> float:
    """Returns a training's whole bill with serverless actors."""
    return sum(cents_of(run).values())


def cents_on_instances(
    run: Mapping[str, Any], actors_usd_per_hour: float = ACTORS_USD_PER_HOUR
) -> dict[str, float]:
    """Returns the training's bill if its actors ran on an instance the whole time, as fast as on Lambda."""
    return {
        part: 100.0 * usd * run["modelled_s"] / 3600.0
        for part, usd in (("learner", PAPERS_LEARNER_USD_PER_HOUR), ("actors", actors_usd_per_hour))
    }


def draw_returns(
    axes: Any, runs: Sequence[Mapping[str, Any]], *, color: str, label: str, against: str = "round"
) -> None:
    """Draws the mean return over seeds with their range, by round or against the mean seconds until then."""
    returns = by_round(runs, "episode_return_mean")
    x = np.arange(1, returns.shape[1] + 1)
    if against == "seconds":
        x = np.cumsum(by_round(runs, "modelled_round_s"), axis=1).mean(axis=0)
    axes.fill_between(
        x, np.nanmin(returns, axis=0), np.nanmax(returns, axis=0), color=color, alpha=0.15, lw=0
    )
    axes.plot(x, np.nanmean(returns, axis=0), color=color, lw=1.6, label=label)
