"""The two kinds of rounds."""

from __future__ import annotations

from typing import Any

from runtime.config.schema import Experiment
from runtime.training.asynchronous import AsynchronousRounds
from runtime.training.loop import RoundLoop
from runtime.training.synchronous import SynchronousRounds


def make_round_loop(experiment: Experiment, **parts: Any) -> RoundLoop:
    """The loop of the rounds that ``algorithm.rounds`` names.

    Args:
        parts: As in `RoundLoop`.
    """
    kinds = {"synchronous": SynchronousRounds, "asynchronous": AsynchronousRounds}
    return kinds[experiment.algorithm.rounds](experiment, **parts)
