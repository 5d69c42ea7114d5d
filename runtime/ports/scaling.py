"""What is measured of a policy, and how many actors a round gets for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from runtime.ports.learning import CurvatureProblem, DetectorSamples, HasState

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


@dataclass(frozen=True)
class GradientNoise:
    """Unbiased estimates of tr Σ of a single sample's gradient, and of |G|², which may come out below 0; or None.

    Attributes:
        products: Hessian-vector products that take about as long: it differentiates each sample once, as half a
            product does, but in small batches; 1.7 to 2.0 were measured.
    """

    variance: float | None
    square: float | None
    products: ClassVar[int] = 2


@dataclass(frozen=True)
class Detected:
    """The signals of the acting policy's objective; None where one is undefined, or no scaler reads it.

    Attributes:
        noise_scale: The smoothed ratio of this and earlier rounds' `GradientNoise`.
        products: Hessian-vector products that they took, or others that take as long.
    """

    eigenvalue_min: float | None = None
    eigenvalue_max: float | None = None
    convexity_ratio: float | None = None
    gradient_noise: float | None = None
    gradient_square: float | None = None
    noise_scale: float | None = None
    products: int = field(default=0, compare=False)


class Detector(Protocol):
    """Measures how curved the objective is, and how noisy its gradient; it never sees a learner."""

    @property
    def objective(self) -> str:
        """Name of the objective that it asks a learner's `curvature_problem` for."""

    def select(self, samples: DetectorSamples) -> DetectorSamples:
        """Returns the subset to keep for a later measurement."""

    def measure(self, problem: CurvatureProblem) -> Detected:
        """Measures the objective's curvature at the policy that the problem was made from; no noise."""

    def measure_noise(self, problem: CurvatureProblem) -> GradientNoise:
        """Measures how noisy the objective's gradient is there."""


ROWS_MAX = 64
"""Finished rounds that a scaler is shown."""


@dataclass(frozen=True)
class RoundView:
    """What a scaler may know when it decides about a round.

    Attributes:
        round_index: The round that is decided about, from 1.
        rows: Of the last finished rounds, oldest first; `ROWS_MAX` at most.
        free_usd: Dollars of the budget that are neither spent nor reserved.
        signals: By name, each of the scaler's `Scaler.signals`; None where it is undefined, or not measured yet.
        target_return: ``stop.target_return``.
        budget_usd: ``budget.usd``.
        is_by_the_clock: Whether the bill follows the clock: then a round is paid for ``round_s``, else for
            ``modelled_round_s`` and ``modelled_evaluate_s``.
    """

    round_index: int
    rows: Sequence[RoundRow] = ()
    free_usd: float = math.inf
    signals: Mapping[str, float | None] = field(default_factory=dict)
    target_return: float | None = None
    budget_usd: float = math.inf
    is_by_the_clock: bool = False


@dataclass(frozen=True)
class ScalingDecision:
    """How many actors a round should have, and why.

    Attributes:
        boosting_score: None from a scaler that has no score.
        decay_weight: None from a scaler that has no weight.
    """

    actor_count: int
    boosting_score: float | None = None
    decay_weight: float | None = None


class Scaler(HasState, Protocol):
    """Decides how many actors a round gets."""

    @property
    def signals(self) -> frozenset[str]:
        """Names of the signals that it reads; what nobody reads is not measured."""

    @property
    def actors_min(self) -> int:
        """Fewest actors of a round; a round that the budget cannot hold with as many is not started."""

    @property
    def actors_max(self) -> int:
        """Most actors of a round."""

    def first_wave(self, round_index: int) -> int:
        """Returns how many actors are due whatever the signals say; they start before these are known."""

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides about a round; called once a round."""

    def observe(self, row: RoundRow) -> None:
        """Takes note of a round's row of rounds.jsonl, when the round is finished and before its checkpoint."""
