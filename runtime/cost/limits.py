"""How tight the limits of a round may be: a little more than what its phases took in the rounds before.

The limits of a round are its worst case, which is reserved before it starts. Those of an experiment are meant for what
goes wrong. Where the budget does not hold them any more, a round goes on under tighter ones, as long as they leave room
for what the last rounds took. docs/decisions/0015-tighter-limits.md says what follows from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from runtime.ports.money import Limits

FACTORS: Final = (16.0, 8.0, 4.0, 2.5, 1.75, 1.25, 1.1)
"""Tightened limits are so many times the longest that was seen; the loosest that the budget holds are taken."""
_ROUNDS: Final = 4
_PHASES: Final = ("actor_s", "collect_s", "sample_s", "detect_s", "evaluate_s")


class PhaseTimes:
    """The longest that each phase was billed in the last rounds that had it."""

    def __init__(
        self, configured: Limits, *, samples_max: int, expected: Mapping[str, float], growth: float = 1.0
    ) -> None:
        """Has seen nothing yet.

        Args:
            configured: Limits as the experiment says; tightened ones are never longer.
            samples_max: The most samples that an update may have.
            expected: Seconds that each phase is expected to be billed, by the names of the arguments of `saw`; they
                count until it is seen.
            growth: How many times longer an actor may become than one that was seen, because it replays an episode
                that gets longer.
        """
        self._growth = growth
        self._configured, self.samples_max, self._expected = configured, samples_max, dict(expected)
        self._seen: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        self._round: dict[str, float] = {}

    def saw(self, **seconds: float | None) -> None:
        """Notes what phases of the present round were billed; None, or no finite seconds, for one that it did not have.

        Args:
            seconds: ``actor_s`` of an actor without its start-up, ``collect_s`` of waiting for actors, ``sample_s`` of
                an update by sample, ``detect_s``, ``evaluate_s``.
        """
        for phase, longest in seconds.items():
            if longest is not None and 0.0 <= longest < math.inf:
                self._round[phase] = max(longest, self._round.get(phase, 0.0))

    def end_round(self) -> None:
        """What is seen from now on is the next round's, or another attempt's."""
        for phase, longest in self._round.items():
            self._seen[phase] = [*self._seen[phase], longest][-_ROUNDS:]
        self._round.clear()

    def choices(self, *, detects: bool, evaluates: bool) -> Iterator[Limits]:
        """Yields limits for a round: the experiment's, then ever tighter ones; no others if too little is known.

        Args:
            detects: Whether the detector is to run.
            evaluates: Whether an evaluation may take time of the round.
        """
        yield self._configured
        longest = self._expected | {phase: max(seen) for phase, seen in self._seen.items() if seen}
        needed = ["actor_s", "collect_s", "sample_s", *["detect_s"] * detects, *["evaluate_s"] * evaluates]
        if not longest.keys() >= set(needed):
            return
        detect_s = longest["detect_s"] if detects else 0.0
        evaluate_s = longest["evaluate_s"] if evaluates else 0.0
        actor_s, collect_s = longest["actor_s"] * self._growth, longest["collect_s"] * self._growth
        update_s = longest["sample_s"] * self.samples_max + detect_s + evaluate_s
        for factor in FACTORS:
            yield Limits(min(factor * actor_s, self._configured.actor_s),
                         min(factor * (collect_s + detect_s), self._configured.collect_s),
                         min(factor * update_s, self._configured.update_s), factor)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps, between two rounds."""
        self.end_round()
        return {phase: list(seen) for phase, seen in self._seen.items()}

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Goes on from what a checkpoint kept.

        Raises:
            KeyError: It is not such a state.
        """
        self._seen = {phase: [float(seconds) for seconds in state[phase]] for phase in _PHASES}
