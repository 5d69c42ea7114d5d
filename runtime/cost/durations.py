"""Reads recorded durations of learner functions, from which virtual time is drawn.

    {"about": {…}, "start_s": [1.9, …], "gradient_s": {"1024": [0.04, …], …}}

Durations are CPU seconds of one core: start-ups, until a first gradient can begin, and gradients, by the samples of
their minibatch. benchmarks/durations.py writes such a file. ``about`` is for people.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from runtime.errors import ExperimentError, one_line
from runtime.records.files import from_json, read_regular
from runtime.settings.section import Field, Json, Section, read_tree

KEY = "learner.stellaris.durations"
_Seconds = Annotated[list[Annotated[float, Field(gt=0, le=900)]], Field(min_length=1)]


class _Recorded(Section):
    """A file of durations."""

    about: Json = None
    start_s: _Seconds
    gradient_s: Annotated[
        dict[Annotated[str, Field(pattern="^[1-9][0-9]{0,9}$")], _Seconds], Field(min_length=1)
    ]


class Durations:
    """Draws from recorded durations, with a random number for each invocation. Their order does not matter.

    Attributes:
        digest: SHA-256 of the durations; a file's description of itself is not included.
    """

    def __init__(self, start_s: Sequence[float], gradient_s: Mapping[int, Sequence[float]]) -> None:
        """Takes recorded durations.

        Args:
            start_s: Durations of start-ups, in seconds.
            gradient_s: Durations of gradients, in seconds, by the samples of their minibatch.
        """
        self._start_s, self._gradient_s = start_s, gradient_s
        self.digest = hashlib.sha256(
            json.dumps(
                [list(start_s), [[one, list(found)] for one, found in gradient_s.items()]]
            ).encode()
        ).hexdigest()

    def gradient_s(self, samples: int, *, key: str) -> float:
        """Returns the seconds of a gradient on this number of samples, or the nearest recorded number.

        Args:
            key: Seed of the draw; the same key draws the same duration.
        """
        return random.Random(f"gradient {key}").choice(self._nearest(samples))

    def start_s(self, *, key: str) -> float:
        """Returns the seconds of a start-up."""
        return random.Random(f"start {key}").choice(self._start_s)

    def is_of(self, samples: int) -> bool:
        """Returns whether gradients on half to twice this number of samples were recorded."""
        return any(samples <= 2 * one <= 4 * samples for one in self._gradient_s)

    def mean_s(self, samples: int) -> float:
        """Returns the mean seconds of a gradient on this number of samples."""
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
        found = read_tree(_Recorded, from_json(read_regular(path, may_be_link=True)))
        return Durations(
            found.start_s, {int(samples): seconds for samples, seconds in found.gradient_s.items()}
        )
    except (OSError, ValueError) as error:
        why = (
            f"cannot be read: {error.strerror or error}"
            if isinstance(error, OSError)
            else f"does not hold durations: {error}"
        )
        raise ExperimentError(
            f"{KEY} = {one_line(repr(str(path)))} {one_line(why)}; allowed: a file that "
            "benchmarks/durations.py has written"
        ) from None
