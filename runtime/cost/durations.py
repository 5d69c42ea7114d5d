"""How long learner functions took once: a file of recorded durations, from which virtual time is made.

    {"about": {…}, "start_s": [1.9, …], "gradient_s": {"1024": [0.04, …], …}}

Durations are CPU seconds of one core: of start-ups, until a first gradient can begin, and of gradients, by the
samples of their minibatch. benchmarks/stellaris/record.py writes such a file. ``about`` is for people.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import ExperimentError

_KEY = "learner.stellaris.durations"
_SECONDS_MAX = 900


class Durations:
    """Draws from what was recorded, each invocation's from its own number: the order of invocations is no matter."""

    def __init__(self, start_s: Sequence[float], gradient_s: Mapping[int, Sequence[float]]) -> None:
        """Takes recorded durations.

        Args:
            start_s: Of start-ups, in seconds.
            gradient_s: Of gradients, in seconds, by the samples of their minibatch.
        """
        self._start_s, self._gradient_s = start_s, gradient_s

    def gradient_s(self, samples: int, *, key: str) -> float:
        """Returns the seconds of a gradient on so many samples, or on as near a number as was recorded.

        Args:
            key: What else decides; the same one draws the same again.
        """
        return random.Random(f"gradient {key}").choice(self._nearest(samples))

    def start_s(self, *, key: str) -> float:
        """Returns the seconds of a start-up."""
        return random.Random(f"start {key}").choice(self._start_s)

    def mean_s(self, samples: int) -> float:
        """Returns the mean seconds of a gradient on so many samples."""
        found = self._nearest(samples)
        return sum(found) / len(found)

    def _nearest(self, samples: int) -> Sequence[float]:
        return self._gradient_s[min(self._gradient_s, key=lambda one: abs(one - samples))]


def read_durations(path: Path) -> Durations:
    """Reads a file of durations.

    Raises:
        ExperimentError: It cannot be read, or does not hold durations.
    """
    try:
        found = json.loads(path.read_bytes())
        gradient_s = {int(samples): _seconds(f"gradient_s.{samples}", listed)
                      for samples, listed in found["gradient_s"].items()}
        if not gradient_s:
            raise ValueError("gradient_s is empty")
        return Durations(_seconds("start_s", found["start_s"]), gradient_s)
    except OSError as error:
        raise ExperimentError(f"{_KEY} = {str(path)!r} cannot be read: {error.strerror}; allowed: a file that "
                              "benchmarks/stellaris/record.py has written") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ExperimentError(f"{_KEY} = {str(path)!r} does not hold durations: {error}; allowed: a file that "
                              "benchmarks/stellaris/record.py has written") from None


def _seconds(name: str, values: Any) -> list[float]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} is no list of seconds")
    for value in values:
        if type(value) not in (int, float) or not 0 < value <= _SECONDS_MAX:
            raise ValueError(f"{name} has {value!r}; allowed: above 0 to {_SECONDS_MAX} seconds")
    return [float(value) for value in values]
