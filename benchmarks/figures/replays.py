"""What the figures on boosting share: trainings that are put back to one of their rounds and go on with more actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot  # noqa: E402
import numpy as np
import torch

from benchmarks.boosting.measure import append, claim, whole_lines
from benchmarks.boosting.signals import curvature
from benchmarks.boosting.trainer import Trainer
from runtime.config.loading import load_experiment
from runtime.ports.learning import DetectorSamples
from runtime.records.estimates import interval_estimate

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"paper": "experiments/paper/hopper-ppo.yaml", "ours": "experiments/hopper-nitro.yaml"}
"""Table 1's PPO on Hopper, whose ten steps a round hardly move a policy, and the file that this project ships."""
OURS = {"ours": SETTINGS["ours"]}
"""For what needs a policy that moves."""
SEEDS = tuple(range(5))
ROUNDS, ACTORS, STEPS = 10, 16, 256
"""Paper: Nitro §2.2: ten rounds of one actor with 256 steps; sixteen actors in a boosted round."""
OTHER_STREAMS, EVALUATION = 1_000_000, 2_000_000
"""Seeds of actors in a replay, and of evaluations: none of a training's own."""


def trainer(experiment: str, seed: int, *settings: str) -> Trainer:
    """A training from its start, on one thread.

    Args:
        experiment: An experiment file.
        settings: As `--set` takes them.
    """
    torch.set_num_threads(1)
    return Trainer(load_experiment(ROOT / experiment, [
        *settings, f"seed={seed}", "learner.threads=1", f"actor.fragment_steps={STEPS}"]).resolved())


def mean_return(training: Trainer, episodes: int, repetition: int = 0) -> float:
    """Of whole episodes with noisy actions."""
    return float(training.returns(episodes, seed=EVALUATION + repetition).mean())


def ratio(training: Trainer, samples: DetectorSamples, subset_size: int | None = None) -> float | None:
    """R of Theorem 1's objective at the training's policy."""
    return curvature(training.learner, samples, "log_prob", subset_size=subset_size)["ratio"]


class Measurements:
    """Lines of a file, each measured once; a figure that is interrupted goes on with the next one."""

    def __init__(self, path: Path, settings: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = claim(path, settings)
        self.lines = whole_lines(path)

    def once(self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The line with that key, which is measured if there is none."""
        for line in self.lines:
            if all(line[name] == value for name, value in key.items()):
                return line
        started_s = time.process_time()
        line = {**key, **measure(), "cpu_s": round(time.process_time() - started_s, 3)}
        append(self._file, line)
        self.lines.append(line)
        return line

    def close(self) -> None:
        self._file.close()


@contextmanager
def put_back(training: Trainer):  # noqa: ANN201
    """Afterwards the training is where it was before."""
    before = training.snapshot()
    try:
        yield
    finally:
        training.restore(before)


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Interquartile mean and its 95 % interval over seeds."""
    return interval_estimate([float(one) for one in values])


def excludes(estimate: Mapping[str, Any], value: float = 0.0) -> int:
    """1 if the interval lies above the value, −1 if below, 0 if it holds it or there are fewer than five seeds."""
    if estimate["seeds"] < 5 or estimate["interval_low"] is None:
        return 0
    return int(estimate["interval_low"] > value) - int(estimate["interval_high"] < value)


def text(estimate: Mapping[str, Any], digits: int = 1) -> str:
    """An estimate for people: ``3.9 [0.4, 7.5]``."""
    mean, low, high = (f"{estimate[name]:,.{digits}f}".replace("-", "−")
                       for name in ("interquartile_mean", "interval_low", "interval_high"))
    return f"{mean} [{low}, {high}]"


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation; NaN if one does not vary."""
    ranks = [np.argsort(np.argsort(one)).astype(float) for one in (x, y)]
    return float(np.corrcoef(ranks)[0, 1])


BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f6fb0", "#d9822b", "#3a8f4d", "#8d5fa8", "#777777"
SETTING_NAMES = {"paper": "Table 1's settings", "ours": "our settings"}


def dots(axes: Any, places: Sequence[float], estimates: Sequence[Mapping[str, Any]], **style: Any) -> None:
    """Estimates over seeds with their intervals, upright."""
    axes.vlines(places, [one["interval_low"] for one in estimates], [one["interval_high"] for one in estimates],
                color=style.get("color"), lw=1.2)
    axes.plot(places, [one["interquartile_mean"] for one in estimates], style.pop("fmt", "o"), **style)


def saved(figure: Any, path: Path) -> None:
    """Without the upper and the right line of its panels."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
