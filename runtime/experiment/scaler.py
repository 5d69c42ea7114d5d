"""Settings that all scalers share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

from runtime.experiment.kinds import Kinds
from runtime.experiment.section import Actors, Field, Section


class ScalerSettings(Section):
    """Base of every scaler's settings. Subclasses may add keys.

    Attributes:
        needs_target: Whether it reads `RoundView.target_return`, so that ``stop.target_return`` is required.
        signals: Names of the signals that it reads; without any, nothing is measured.
        has_score: Whether its decisions have a `ScalingDecision.boosting_score`.
    """

    signals: ClassVar[frozenset[str]] = frozenset()
    has_score: ClassVar[bool] = False
    needs_target: ClassVar[bool] = False

    kind: str = Field("", description="how many actors a round gets")
    actors_min: Actors = Field(8, description="I_min, fewest actors per round")
    actors_max: Actors = Field(64, description="I_max, most actors per round")

    @property
    def most_actors(self) -> int:
        """Returns the most actors that the scaler gives a round."""
        return self.actors_max

    @property
    def smallest_round(self) -> int:
        """Returns the fewest actors to which a short budget may shrink a round."""
        return self.actors_min

    @property
    def file_read(self) -> str | None:
        """Returns the key that names a local file, which a deployment does not have; None if there is no such key."""
        return None

    def waves(self, concurrency: int | None) -> int:
        """Returns in how many waves a round's actors run with this concurrency; None if all run at once."""
        return 1 if concurrency is None else math.ceil(self.most_actors / max(1, concurrency))

    @property
    def mean_actors(self) -> float:
        """Returns the expected mean number of actors per round, for plans."""
        return (self.smallest_round + self.most_actors) / 2

    def contradictions(self) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        if self.actors_min > self.actors_max:
            yield (
                f"scaler.actors_min = {self.actors_min} is larger than scaler.actors_max = {self.actors_max}; "
                f"allowed: 1 to {self.actors_max}"
            )

    def make(self) -> Any:
        """Makes the scaler; see `runtime.scaler.interfaces.Scaler`."""
        raise NotImplementedError(f"{type(self).__name__} has no method make")


SCALERS = Kinds(
    "scaler",
    ScalerSettings,
    "how many actors a round gets; fixed = always the same; nitro = more in flat rounds; schedule = from a table; "
    "minions = by a learned scheduler",
)
