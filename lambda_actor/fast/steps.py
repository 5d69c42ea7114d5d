"""What lean steps have in common: they leave out what no actor reads, and are equal to Gymnasium's own to the digit.

They read private attributes of Gymnasium's classes, which are known for one version of Gymnasium. Any other version,
class or wrapper, and an environment of which somebody has changed a method, takes its own steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from lambda_actor.fast import PLAIN_VARIABLE, is_plain

PROVEN_VERSION = "1.4.0"
"""The version of Gymnasium whose steps are repeated."""

Outcome = tuple[np.ndarray, float, bool, bool]
"""A frame as networks see it, reward, terminated, truncated."""


class LeanStep:
    """Steps of one environment."""

    def __init__(self, bare: Any) -> None:
        """Notes what methods an environment has now, which is without its wrappers."""
        self._bare, self._methods = bare, changed_methods(bare)

    @property
    def is_usable(self) -> bool:
        """Whether the environment's own methods are as they were, and nobody watches; asked at each reset."""
        return self._bare.render_mode is None and changed_methods(self._bare) == self._methods

    def __call__(self, action: Any) -> Outcome:
        """A step with an action as the environment takes it."""
        raise NotImplementedError


def why_off() -> str:
    """Returns why no environment takes lean steps here; "" if those that are known do."""
    if is_plain():
        return f"{PLAIN_VARIABLE} is set"
    if gymnasium.__version__ != PROVEN_VERSION:
        return f"Gymnasium {gymnasium.__version__} is installed, and the quick steps are for {PROVEN_VERSION}"
    return ""


def changed_methods(environment: object) -> Mapping[str, object]:
    """Methods that this one object has instead of its class's, such as to film it, by name."""
    return {name: value for name, value in vars(environment).items()
            if callable(getattr(type(environment), name, None))}
