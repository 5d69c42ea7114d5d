"""Shared code of the figures on boosting: trainings that are reset to one of their rounds and get more actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.provenance import ROOT
from papers.estimates import SEEDS
from papers.nitro.boosting.measure import append, claim, whole_lines
from papers.nitro.boosting.signals import curvature
from papers.nitro.boosting.trainer import Trainer
from runtime.config.loading import load_experiment
from runtime.ports.learning import DetectorSamples

Case = TypeVar("Case")
SETTINGS = {"paper": "experiments/paper/hopper-ppo.yaml", "ours": "experiments/hopper.yaml"}
"""Table 1's PPO on Hopper, whose ten steps a round hardly move a policy, and the file that this project ships."""
SETTING_NAMES = {"paper": "Table 1's settings", "ours": "our settings"}
OURS = {"ours": SETTINGS["ours"]}
"""Settings for measurements that need a policy that moves."""
ROUNDS, ACTORS, STEPS = 10, 16, 256
"""Paper: Nitro §2.2: ten rounds of one actor with 256 steps; sixteen actors in a boosted round."""
PLACES = ("lowest", "median", "highest")
"""Ranks of R among ten rounds."""
OTHER_STREAMS, EVALUATION = 1_000_000, 2_000_000
"""Seeds of a replay's actors, and of evaluations: different from a training's own."""


def trainer(experiment: str, seed: int, *settings: str) -> Trainer:
    """Returns a new training on one thread.

    Args:
        experiment: An experiment file.
        settings: Overrides in the form of `--set`.
    """
    torch.set_num_threads(1)
    return Trainer(
        load_experiment(
            ROOT / experiment,
            [*settings, f"seed={seed}", "learner.threads=1", f"actor.fragment_steps={STEPS}"],
        ).resolved()
    )


def mean_return(training: Trainer, episodes: int, repetition: int = 0) -> float:
    """Returns the mean return of whole episodes with noisy actions."""
    return float(training.returns(episodes, seed=EVALUATION + repetition).mean())


def ratio(
    training: Trainer, samples: DetectorSamples, subset_size: int | None = None
) -> float | None:
    """Returns R of Theorem 1's objective for the training's policy."""
    return curvature(training.learner, samples, "log_prob", subset_size=subset_size)["ratio"]


def measured(
    path: Path,
    settings: str,
    cases: Mapping[str, Case],
    measure: Callable[[Case, int], Mapping[str, Any]],
    *,
    key: str = "setting",
) -> dict[str, list[dict[str, Any]]]:
    """Measures each case with each seed once, as a line of a file. An interrupted figure continues with the next line.

    Args:
        settings: The settings on which the lines depend.
        cases: The cases by name.
        key: The key of a line that holds its case's name.

    Returns:
        Lines by case.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with claim(path, settings) as file:
        known = {(line[key], line["seed"]): line for line in whole_lines(path)}
        for seed in SEEDS:
            for name, case in cases.items():
                if (name, seed) not in known:
                    started_s = time.process_time()
                    line = {key: name, "seed": seed, **measure(case, seed)}
                    known[name, seed] = line | {"cpu_s": round(time.process_time() - started_s, 3)}
                    append(file, known[name, seed])
    return {name: [known[name, seed] for seed in SEEDS] for name in cases}


@contextmanager
def put_back(training: Trainer) -> Iterator[None]:
    """Restores the training's state afterwards."""
    before = training.snapshot()
    try:
        yield
    finally:
        training.restore(before)


def chosen_rounds(training: Trainer) -> dict[str, dict[str, Any]]:
    """Returns a plain training's state before the rounds with the lowest, the median and the highest R.

    A round's R belongs to the policy that its actors play, measured on the samples of the policy's update. The first
    round has none.
    """
    samples, before = None, []
    for round_index in range(1, ROUNDS + 1):
        if samples is not None and (found := ratio(training, samples)) is not None:
            before.append(
                {
                    "round_index": round_index,
                    "ratio": found,
                    "snapshot": training.snapshot(),
                    "samples": samples,
                }
            )
        samples = training.update(training.roll_out(round_index, 1)).samples
    ordered = sorted(before, key=lambda one: one["ratio"])
    return dict(zip(PLACES, (ordered[0], ordered[len(ordered) // 2], ordered[-1]), strict=True))
