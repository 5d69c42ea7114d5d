"""The names of runs, and of all files of a run."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.records.files import read_json_object

if TYPE_CHECKING:
    from runtime.experiment.schema import Experiment

CONFIG = "config.yaml"
PRICES = "prices.json"
ROUNDS = "rounds.jsonl"
EVENTS = "events.jsonl"
SUMMARY = "summary.json"
LEDGER = "ledger.json"
POLICY = "policy.safetensors"
BEST_POLICY = "best_policy.safetensors"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
ACTORS_LOG = "actors.log"
REPORT = "report.html"
LOCK = ".lock"
UPDATES, KEPT_UPDATES = ".updates", "updates/"
"""Files for learner functions, while a run on one machine lasts."""

MPS = "mps"
"""Logs of NVIDIA's MPS, if instances share GPUs."""

WANDB_ID, WANDB = "wandb.json", "wandb"
"""With ``--wandb``: the run's id there, and the folder of W&B's files."""

ENDED, REFUSED = "ended.json", "refused.json"
"""In the results bucket: why a deployed run ended, and why a learner refused to start."""

CHECKPOINT_FILE = re.compile(rf"{CHECKPOINTS}/round_(\d{{1,20}})\.(json|safetensors)", re.ASCII)
"""A checkpoint's two files: the round, and the kind of file."""
_OF_RUN = (
    CONFIG,
    PRICES,
    ROUNDS,
    EVENTS,
    SUMMARY,
    LEDGER,
    POLICY,
    BEST_POLICY,
    ACTORS_LOG,
    REPORT,
)
RUN_FILE = re.compile(
    "|".join(
        [
            *map(re.escape, _OF_RUN),
            rf"{TENSORBOARD}/events\.out\.tfevents\.[\w.-]{{1,200}}",
            CHECKPOINT_FILE.pattern,
        ]
    ),
    re.ASCII,
)
"""The names of all files of a run that a bucket keeps. Neither Python nor a shell would run any of them, and none is
too long for a file system. A browser would run a report, so it is never downloaded but made anew."""
DOWNLOADED = ".download.json"
"""In a downloaded run's directory: its origin."""


_NOT_IN_A_NAME = re.compile(r"[^\w.]+")
_NAME_CHARACTERS_MAX = 120


def run_name(name: str, experiment: Experiment, *, has_seed: bool = True) -> str:
    """Returns a name that distinguishes runs in a list: ``hopper-Hopper-v5-ppo-fixed-seed-0``.

    Args:
        name: The experiment's name.
        experiment: The experiment.
        has_seed: Whether it is one run; otherwise the name is for several seeds.
    """
    parts = [name, experiment.environment.id, experiment.algorithm.kind, experiment.scaler.kind]
    text = _NOT_IN_A_NAME.sub("-", "-".join(parts)).strip("-.")[:_NAME_CHARACTERS_MAX]
    return f"{text}-seed-{experiment.seed}" if has_seed else text


def default_directory(
    name: str, experiment: Experiment, begun: datetime, *, has_seed: bool = True
) -> Path:
    """Returns the default directory for results; see `run_name` for the arguments."""
    return Path("runs") / f"{run_name(name, experiment, has_seed=has_seed)}-{begun:%Y%m%d-%H%M%S}"


def seeds_in(path: Path) -> int:
    """Returns the number of seeds in a directory of several, by its summary or else those begun; 0 if it is none."""
    seeds = read_json_object(path / SUMMARY).get("seeds")
    if isinstance(seeds, list):
        return len(seeds)
    # A single run has no runs inside it.
    return len([*path.glob(f"seed-*/{CONFIG}")]) if (path / CONFIG).exists() else 0
