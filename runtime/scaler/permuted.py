"""A recorded run's counts in random order: the baseline that shows what a signal is worth.

The counts are those that the recorded run's scaler asked for, each the same number of times. So both runs spend the
same except for measurements, and only the assignment to rounds is random. A uniform random score would spend a
different amount.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from runtime.errors import ExperimentError
from runtime.ports.learning import State
from runtime.records.files import parse_json
from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings
from runtime.settings.section import Field

_ROUNDS_FILE = "rounds.jsonl"


class PermutedSettings(ScalerSettings):
    """Settings of the scaler that shuffles a recorded run."""

    about: ClassVar[str] = "shuffles a recorded run's counts"

    recorded_run: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="recorded run: its directory or rounds.jsonl, relative to the working directory",
    )
    order_seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of the order")

    @property
    def file_read(self) -> str:
        """Returns the key that names the recording."""
        return "recorded_run"

    def contradictions(self) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from super().contradictions()
        if self.recorded_run is None:
            yield (
                "scaler.kind = permuted has no recorded run: scaler.recorded_run = null; allowed: the directory of "
                "a run, or its rounds.jsonl"
            )

    def make(self) -> PermutedScaler:
        """Reads the recording, and makes the scaler.

        Raises:
            ExperimentError: It cannot be read, or a count is out of bounds.
        """
        return PermutedScaler(self, self._recorded_counts())

    def _recorded_counts(self) -> list[int]:
        try:
            path = Path(self.recorded_run or "")
            path = path / _ROUNDS_FILE if path.is_dir() else path
            if path.exists() and not path.is_file():
                raise ValueError("this is no file")
            lines = path.read_bytes().splitlines()
            counts = [parse_json(line)["actor_count_wanted"] for line in lines]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExperimentError(
                f"scaler.recorded_run = {self.recorded_run!r} cannot be read: "
                f"{type(error).__name__}: {error}; allowed: the directory of a run, or its "
                f"{_ROUNDS_FILE}"
            ) from None
        if not counts:
            raise ExperimentError(
                f"scaler.recorded_run = {self.recorded_run!r} has no rounds; allowed: a run with one "
                "at least"
            )
        for round_index, count in enumerate(counts, start=1):
            if type(count) is not int or not self.actors_min <= count <= self.actors_max:
                raise ExperimentError(
                    f"scaler.recorded_run = {self.recorded_run!r}: {count!r:.80} actors in its round {round_index}; "
                    f"allowed: scaler.actors_min = {self.actors_min} to scaler.actors_max = {self.actors_max}, as "
                    "that run had them"
                )
        return counts


class PermutedScaler(PlannedScaler):
    """Uses the recorded counts in random order; after the last one, again in another order."""

    def __init__(self, settings: PermutedSettings, counts: Sequence[int]) -> None:
        super().__init__(settings, self._count)
        self._counts, self._seed = list(counts), settings.order_seed

    def _count(self, round_index: int) -> int:
        passes, place = divmod(round_index - 1, len(self._counts))
        order = np.random.default_rng((self._seed, passes)).permutation(len(self._counts))
        return self._counts[int(order[place])]

    def get_state(self) -> State:
        """Returns the recorded counts, so that a resumption uses them even if the recording has changed."""
        return State({}, {"counts": self._counts})

    def set_state(self, state: State) -> None:
        """Restores the counts from ``state``."""
        self._counts = [int(count) for count in state.values["counts"]]
