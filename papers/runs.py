"""What the studies' runs returned, round by round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WINDOW_ROUNDS = 5
"""Rounds of the metric: the mean return of the training episodes that end in them."""

Run = Mapping[str, Sequence[Any]]
"""Columns of a run's rounds."""
Estimates = Mapping[str, Mapping[str, Any]]
"""Estimates over seeds by label, such as an environment."""


class Results:
    """The results of the protocol's studies.

    Attributes:
        folder: It holds STUDY.json of each study that has any.
        studies: The protocol's studies by name.
    """

    def __init__(self, folder: Path, studies: Mapping[str, Any]) -> None:
        """Reads nothing yet."""
        self.folder = folder
        self.studies = studies

    def content(self, study: str) -> Mapping[str, Any]:
        """Returns a study's file; empty if there is none."""
        path = self.folder / f"{study}.json"
        try:
            found: Mapping[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        except ValueError as error:
            raise SystemExit(f"{path}: is damaged: {error}") from None
        return found

    def runs(self, study: str) -> Mapping[str, Mapping[str, Run]]:
        """Returns a study's runs by arm and seed."""
        found: Mapping[str, Mapping[str, Run]] = self.content(study).get("runs", {})
        return found

    def pairs(
        self, study: str, ours: str, theirs: str, their_study: str = ""
    ) -> list[tuple[Run, Run]]:
        """Returns the runs of two arms with the same seed; ``their_study``: if it is another one."""
        first = self.runs(study).get(ours, {})
        second = self.runs(their_study or study).get(theirs, {})
        return [(first[seed], second[seed]) for seed in first if seed in second]


def returns(run: Run) -> np.ndarray:
    """Returns the metric after each round: the mean return of the episodes that ended in the last five; NaN before."""
    count = np.asarray(run["episodes_finished"], float)
    total = np.nan_to_num(np.asarray(run["episode_return_mean"], float)) * count
    window = np.ones(WINDOW_ROUNDS)
    ended = np.convolve(count, window)[: len(count)]
    mean = np.convolve(total, window)[: len(count)] / np.where(ended > 0, ended, np.nan)
    mean[: WINDOW_ROUNDS - 1] = np.nan
    return mean


def evaluated(run: Run) -> np.ndarray:
    """Returns the mean return of the last evaluation after each round; the first one's before it."""
    means = np.asarray(run["evaluation_return_mean"], float)
    is_known = ~np.isnan(means)
    last = np.maximum(np.cumsum(is_known) - 1, 0)
    found: np.ndarray = means[is_known][last]
    return found


def rounds_compared(pair: Sequence[Run], at: str) -> list[int]:
    """Returns the number of first rounds of each run of a pair to compare.

    Args:
        at: ``return``: until each first has the return that the worse one has at its end. ``rounds``: all of them.
    """
    curves = [returns(run) for run in pair]
    if at == "rounds":
        return [len(curve) for curve in curves]
    level = min(curve[-1] for curve in curves)
    return [int(np.argmax(curve >= level)) + 1 for curve in curves]


def last_rounds(totals: Sequence[np.ndarray]) -> list[int]:
    """Returns the last round, from 0, of each run of a pair that is within what the smaller one took.

    Args:
        totals: What each run of the pair took until the end of each round, such as environment steps.
    """
    limit = min(total[-1] for total in totals)
    return [int(np.count_nonzero(total <= limit)) - 1 for total in totals]
