"""How long learner functions took once: a file of recorded durations, from which virtual time is made.

    {"about": {…}, "start_s": [1.9, …], "gradient_s": {"1024": [0.04, …], …}}

Durations are CPU seconds of one core: of start-ups, until a first gradient can begin, and of gradients, by the
samples of their minibatch. benchmarks/durations.py writes such a file. ``about`` is for people.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.errors import ExperimentError, one_line
from runtime.records.files import from_json

KEY = "learner.stellaris.durations"
_SECONDS_MAX = 900
_BYTES_MAX = 2**24


class Durations:
    """Draws from what was recorded, each invocation's from its own number: the order of invocations is no matter.

    Attributes:
        digest: SHA-256 of all that is drawn from; what a file says about itself is no part of it.
    """

    def __init__(self, start_s: Sequence[float], gradient_s: Mapping[int, Sequence[float]]) -> None:
        """Takes recorded durations.

        Args:
            start_s: Of start-ups, in seconds.
            gradient_s: Of gradients, in seconds, by the samples of their minibatch.
        """
        self._start_s, self._gradient_s = start_s, gradient_s
        self.digest = hashlib.sha256(
            json.dumps([list(start_s), [[one, list(found)] for one, found in gradient_s.items()]]).encode()).hexdigest()

    def gradient_s(self, samples: int, *, key: str) -> float:
        """Returns the seconds of a gradient on so many samples, or on as near a number as was recorded.

        Args:
            key: What else decides; the same one draws the same again.
        """
        return random.Random(f"gradient {key}").choice(self._nearest(samples))

    def start_s(self, *, key: str) -> float:
        """Returns the seconds of a start-up."""
        return random.Random(f"start {key}").choice(self._start_s)

    def is_of(self, samples: int) -> bool:
        """Whether gradients on half as many samples, up to twice as many, were recorded."""
        return any(samples <= 2 * one <= 4 * samples for one in self._gradient_s)

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
        if path.exists() and not path.is_dir() and not (path.is_file() and path.stat().st_size <= _BYTES_MAX):
            raise ValueError(f"it is no file of {_BYTES_MAX // 2**20} MiB at most")
        found = from_json(path.read_bytes())
        if not isinstance(found, dict) or not isinstance(found.get("gradient_s"), dict) or not found["gradient_s"]:
            raise ValueError("gradient_s is no list of seconds for each number of samples")
        gradient_s = {_samples(samples): _seconds(f"gradient_s.{samples}", listed)
                      for samples, listed in found["gradient_s"].items()}
        return Durations(_seconds("start_s", found.get("start_s")), gradient_s)
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _refused(path, f"does not hold durations: {error}") from None


def _refused(path: Path, why: str) -> ExperimentError:
    return ExperimentError(f"{KEY} = {one_line(repr(str(path)))} {one_line(why)}; allowed: a file that "
                           "benchmarks/durations.py has written")


def _samples(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,9}", text):
        raise ValueError(f"gradient_s has {text!r}; allowed: a whole number of samples from 1")
    return int(text)


def _seconds(name: str, values: Any) -> list[float]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name} is no list of seconds")
    for value in values:
        if type(value) not in (int, float) or not 0 < value <= _SECONDS_MAX:
            raise ValueError(f"{name} has {value!r}; allowed: above 0 to {_SECONDS_MAX} seconds")
    return [float(value) for value in values]
