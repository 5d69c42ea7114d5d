"""What lean steps have in common: steps that leave out what no actor reads, equal to Gymnasium's own to the digit.

What they read of Gymnasium's classes is known for one version of Gymnasium. Any other version, class or wrapper, and
an environment of which somebody has changed a method, takes its own steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

PROVEN_VERSION = "1.4.0"
"""The version of Gymnasium whose steps are repeated."""

Outcome = tuple[np.ndarray, float, bool, bool]
"""A frame as networks see it, reward, terminated, truncated."""


class LeanStep(Protocol):
    """Steps of one environment."""

    @property
    def is_usable(self) -> bool:
        """Whether the environment's own methods are as they were, and nobody watches; asked at each reset."""

    def __call__(self, action: np.ndarray | int) -> Outcome:
        """A step with an action as the environment takes it."""


def changed_methods(environment: object) -> Mapping[str, object]:
    """Methods that this one object has instead of its class's, such as to film it, by name."""
    return {name: value for name, value in vars(environment).items()
            if callable(getattr(type(environment), name, None))}
