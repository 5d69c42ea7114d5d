"""Tightens the limits of a round to a quarter more than the phases of the last rounds took.

A round's limits define its worst case, which is reserved before it starts. The experiment's limits are meant for
failures and are far longer than a normal round. If the budget cannot hold them and nobody bills the run, a round
reserves by tightened limits instead. They end nothing: slower work goes on, and counts as what was reserved for it.
Nothing is tightened while the duration of a needed phase is unknown. See docs/decisions/money.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from runtime.money.work import Limits

_MARGIN: Final = 1.25
"""Tightened limits are the longest seen durations times this."""
_ROUNDS: Final = 4
"""Rounds whose longest duration counts; few, so that a first round's cold starts are soon forgotten."""


@dataclass(frozen=True)
class PhaseSeconds:
    """Billed seconds of a round's phases; None for a phase that it does not have or whose seconds are unknown.

    Attributes:
        actor_s: An actor, without its start-up.
        collect_s: The wait for all actors.
        sample_s: An update, by sample.
        detect_s: The detector.
        evaluate_s: An evaluation.
    """

    actor_s: float | None = None
    collect_s: float | None = None
    sample_s: float | None = None
    detect_s: float | None = None
    evaluate_s: float | None = None


_PHASES: Final = tuple(phase.name for phase in fields(PhaseSeconds))


class PhaseTimes:
    """The longest billed duration of each phase in the last rounds that had it."""

    def __init__(
        self,
        configured: Limits,
        *,
        samples_max: int,
        expected: PhaseSeconds = PhaseSeconds(),
        growth: float = 1.0,
    ) -> None:
        """Starts without measurements.

        Args:
            configured: The experiment's limits; tightened ones are never longer.
            samples_max: The most samples that an update may have.
            expected: Durations of phases that were not seen yet.
            growth: Factor by which an actor may become longer than those seen, because it replays a growing episode.
        """
        self.samples_max = samples_max
        self._configured = configured
        self._expected = _known(expected)
        self._growth = growth
        self._seen: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        self._round: dict[str, float] = {}

    def saw(self, seconds: PhaseSeconds) -> None:
        """Records phases of the current round; the longest of each counts."""
        for phase, longest in _known(seconds).items():
            self._round[phase] = max(longest, self._round.get(phase, 0.0))

    def end_round(self) -> None:
        """Ends the round: later durations belong to the next round or to another attempt."""
        self._seen = self.get_state()
        self._round.clear()

    def choices(self, *, detects: bool, evaluates: bool) -> list[Limits]:
        """Returns limits for a round: the experiment's, then tightened ones if enough is known.

        Args:
            detects: Whether the detector is to run.
            evaluates: Whether an evaluation may use time of the round.
        """
        longest = self._expected | {phase: max(seen) for phase, seen in self._seen.items() if seen}
        is_needed = {"detect_s": detects, "evaluate_s": evaluates}
        if any(is_needed.get(phase, True) and phase not in longest for phase in _PHASES):
            return [self._configured]
        detect_s = longest["detect_s"] if detects else 0.0
        evaluate_s = longest["evaluate_s"] if evaluates else 0.0
        actor_s, collect_s = longest["actor_s"] * self._growth, longest["collect_s"] * self._growth
        # Detection runs while actors play, so it may lengthen the collection; it also uses time of `Limits.update_s`.
        update_s = longest["sample_s"] * self.samples_max + detect_s + evaluate_s
        tightened = Limits(
            min(_MARGIN * actor_s, self._configured.actor_s),
            min(_MARGIN * (collect_s + detect_s), self._configured.collect_s),
            min(_MARGIN * update_s, self._configured.update_s),
            is_tightened=True,
        )
        return [self._configured, tightened]

    def get_state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as if the round ended now."""
        return {
            phase: [*seen, *([self._round[phase]] if phase in self._round else [])][-_ROUNDS:]
            for phase, seen in self._seen.items()
        }

    def set_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restores a checkpoint's state.

        Raises:
            KeyError: It is not such a state.
        """
        self._seen = {phase: [float(seconds) for seconds in state[phase]] for phase in _PHASES}


def _known(seconds: PhaseSeconds) -> dict[str, float]:
    return {phase: value for phase, value in vars(seconds).items() if value is not None}
