"""Interface of detectors, which measure a policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from runtime.learner.interfaces import CurvatureProblem, DetectorSamples


@dataclass(frozen=True)
class Detected:
    """The signals of the acting policy's objective; None if one is undefined.

    Attributes:
        products: Hessian-vector products of the measurements, or the equivalent of other work.
    """

    eigenvalue_min: float | None = None
    eigenvalue_max: float | None = None
    convexity_ratio: float | None = None
    products: int = field(default=0, compare=False)


class Detector(Protocol):
    """Measures signals of the objective, without access to the learner."""

    @property
    def objective(self) -> str:
        """Name of the objective, for a learner's `curvature_problem`."""

    def select(self, samples: DetectorSamples) -> DetectorSamples:
        """Returns the subset to keep for a later measurement."""

    def measure(self, problem: CurvatureProblem) -> Detected:
        """Measures the signals at the problem's policy."""
