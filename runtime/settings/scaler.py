"""What the settings of all scalers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from runtime.settings.kinds import Kinds
from runtime.settings.section import Actors, Field, Section, Unused

CURVATURE_SIGNALS = frozenset({"convexity_ratio", "eigenvalue_min", "eigenvalue_max"})
NOISE_SIGNALS = frozenset({"noise_scale", "gradient_noise", "gradient_square"})
"""What scalers may read, by the measurement that it takes."""


class ScalerSettings(Section):
    """What all scalers share; each adds keys of its own, which stand beside these in the section ``scaler``.

    Attributes:
        about: What the scaler does, in a few words.
        needs_target: Whether it reads `RoundView.target_return`, which then must be given by ``stop.target_return``.
        signals: Names of the signals that it reads; what nobody reads is neither measured nor shown.
        has_score: Whether its decisions have a `ScalingDecision.score`.
    """

    about: ClassVar[str]
    signals: ClassVar[frozenset[str]] = frozenset()
    has_score: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    actors_min: Actors = Field(8, description="I_min, fewest actors per round")
    actors_max: Actors = Field(64, description="I_max, most actors per round")

    @property
    def most_actors(self) -> int:
        """Most actors that the scaler gives a round."""
        return self.actors_max

    @property
    def smallest_round(self) -> int:
        """Fewest actors that a round may be shrunk to when the budget gets short."""
        return self.actors_min

    @property
    def file_read(self) -> str | None:
        """The key that names a file of the machine on which it is made, which a deployment does not have; or None."""
        return None

    @property
    def mean_actors(self) -> float:
        """Actors of a round, on average, as far as the settings tell: plans are made with it."""
        return (self.smallest_round + self.most_actors) / 2

    def unused(self) -> Iterator[Unused]:
        """Yields the scaler's keys that do not count with these values."""
        yield from ()

    def contradictions(self) -> Iterator[str]:
        """Yields what is wrong with values that are each allowed."""
        if self.actors_min > self.actors_max:
            yield (f"scaler.actors_min = {self.actors_min} is larger than scaler.actors_max = {self.actors_max}; "
                   f"allowed: 1 to {self.actors_max}")

    def make(self) -> Any:
        """Makes the scaler that has these settings; see `runtime.ports.scaling.Scaler`."""
        raise NotImplementedError


SCALERS = Kinds("scaler", ScalerSettings)
