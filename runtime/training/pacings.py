"""The two kinds of rounds."""

from __future__ import annotations

from typing import Any

from runtime.asynchronous import AsynchronousRounds
from runtime.config import Experiment
from runtime.round_loop import RoundLoop
from runtime.synchronous import SynchronousRounds


def make_round_loop(experiment: Experiment, **parts: Any) -> RoundLoop:
    """The loop of the rounds that ``algorithm.rounds`` names.

    Args:
        parts: As in `RoundLoop`.
    """
    kinds = {"synchronous": SynchronousRounds, "asynchronous": AsynchronousRounds}
    return kinds[experiment.algorithm.rounds](experiment, **parts)
