"""The base of lean steps, which omit what no actor reads and are equal to Gymnasium's own to the digit.

They read private attributes of Gymnasium's classes, which are known for one version. Other versions, classes and
wrappers, and environments with a changed method, use their own steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from lambda_actor.fast import PLAIN_VARIABLE, is_plain

PROVEN_VERSION = "1.4.0"
"""The version of Gymnasium whose steps are reproduced."""

Outcome = tuple[np.ndarray, float, bool, bool]
"""A network's frame, reward, terminated, truncated."""


class LeanStep:
    """Steps of one environment."""

    def __init__(self, bare: Any) -> None:
        """Records the current methods of an environment without its wrappers."""
        self._bare = bare
        self._methods = changed_methods(bare)

    @property
    def is_usable(self) -> bool:
        """Whether the environment's methods are unchanged and not traced. Checked at each reset."""
        return self._bare.render_mode is None and changed_methods(self._bare) == self._methods

    def __call__(self, action: Any) -> Outcome:
        """Takes a step with an action in the environment's form."""
        raise NotImplementedError


def why_off() -> str:
    """Returns why no environment takes lean steps here; "" if known ones do."""
    if is_plain():
        return f"{PLAIN_VARIABLE} is set"
    if gymnasium.__version__ != PROVEN_VERSION:
        return f"Gymnasium {gymnasium.__version__} is installed, and the quick steps are for {PROVEN_VERSION}"
    return ""


def changed_methods(environment: object) -> Mapping[str, object]:
    """Returns by name the methods that this object has instead of its class's, for example for recording video."""
    return {
        name: value
        for name, value in vars(environment).items()
        if callable(getattr(type(environment), name, None))
    }
