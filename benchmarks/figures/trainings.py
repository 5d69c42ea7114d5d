"""What the figures on whole trainings with Nitro's settings share: each is made once, for all figures that need it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.competition.plan import Run
from benchmarks.competition.run import is_finished, kept, train_all
from benchmarks.figures.replays import SEEDS

HOPPER = "hopper-ppo"
NITRO, STATIC = "nitro", "16 actors"
DECAY_FACTORS, WINDOWS = (0.93, 0.94, 0.95, 0.97, 0.98, 0.99), (3, 4, 8, 10)
"""Other than the paper's 0.96 and 6."""
TARGET = {"stop.target_return": 3000.0}
"""Far beyond what fifty rounds of these settings reach; MinionsRL's rules ask how far they have come."""
ARMS: dict[str, dict[str, object]] = {
    NITRO: {},
    STATIC: {"scaler.kind": "fixed", "scaler.actors_fixed": 16, "actor.provisioned": 16},
    "kungfu": {"scaler.kind": "kungfu"},
    "hydrozoa": {"scaler.kind": "hydrozoa"},
    "minions": {"scaler.kind": "minions", "scaler.scheduler": "hopper", "scaler.scheduler_actions": "sampled", **TARGET},
    "minions-adapt": {"scaler.kind": "minions-adapt", **TARGET},
    **{f"d = {factor}": {"scaler.decay_factor": factor} for factor in DECAY_FACTORS},
    **{f"n = {window}": {"scaler.window_rounds": window} for window in WINDOWS},
}
"""By name, the settings in which a training differs from experiments/paper."""
JOBS = 2


def runs_of(name: str, arm: str, work: Path) -> list[Run]:
    """A training for each seed; an actor process and a learner's thread each, which change no result.

    Args:
        name: A file of experiments/paper, without its ending.
        arm: A key of `ARMS`.
    """
    return [Run(f"experiments/paper/{name}.yaml", arm, "", seed,
                {"learner.threads": 1, "fleet.processes": 1, **ARMS[arm], "seed": seed,
                 **({"scaler.draws_seed": seed} if arm == "minions" else {})},
                work / "trainings" / name / arm.replace(" ", "") / str(seed)) for seed in SEEDS]


def trained(names: Sequence[str], arms: Sequence[str], work: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Makes the trainings that are missing; returns what is kept of each, by file and arm.

    Raises:
        SystemExit: One has failed; its log is beside it.
    """
    runs = {name: {arm: runs_of(name, arm, work.resolve()) for arm in arms} for name in names}
    flat = [run for of_name in runs.values() for of_arm in of_name.values() for run in of_arm]
    # A seed of every arm after the other, so that an interrupted measurement has something of each.
    train_all(sorted(flat, key=lambda run: run.seed), jobs=JOBS, until_s=math.inf, note=lambda: None)
    if missing := [run for run in flat if not is_finished(run.directory)]:
        sys.exit(f"{len(missing)} trainings have failed; see {missing[0].directory}.log")
    return {name: {arm: [kept(run) for run in of_arm] for arm, of_arm in of_name.items()}
            for name, of_name in runs.items()}
