"""The scaler's decisions in a stream: the detector measures in parallel with training.

A round waits for it only after it has trained on the minimum count of actors. Otherwise a detector slower than the
smallest round would never boost one.
"""

from __future__ import annotations

from runtime.training.asynchronous.round import StreamedRound
from runtime.training.detection import Measurement
from runtime.training.pacings import Parts

_PATIENCE_S = 5.0
"""Seconds that an ending run waits for a measurement it no longer needs."""


class StreamDecisions:
    """Asks the scaler once a round.

    Attributes:
        measurement: The current one; None if there is none.
    """

    def __init__(self, parts: Parts) -> None:
        """Takes the parts of the run."""
        self._parts = parts
        self.measurement: Measurement | None = None

    def measure(self, current: StreamedRound) -> None:
        """Begins to measure the newest policy on the last round's samples, unless a measurement is in progress."""
        if not current.is_decided and self.measurement is None:
            self.measurement = self._parts.detection.begin()

    def decide(self, current: StreamedRound) -> None:
        """Asks the scaler once a round, when the detector is done, or at once if there is nothing to measure."""
        if current.is_decided:
            return
        if self.measurement and not self.measurement.done():
            self._tell_if_slow(self.measurement)
            return
        if self.measurement:
            measurement, self.measurement = self.measurement, None
            current.measured = self._parts.detection.result(measurement)
        current.decision = self._parts.scaling.decide(current.round_index, current.measured)
        current.is_decided = True

    def _tell_if_slow(self, measurement: Measurement) -> None:
        """Reports a slow measurement once. Until it is done, rounds have no score."""
        limit_s = self._parts.books.meter.limits.update_s
        if self._parts.clock() - measurement.started_s > limit_s and not measurement.is_told:
            measurement.is_told = True
            self._parts.events.append(
                "detection_slow",
                after_s=limit_s,
                reason="a smaller detector.subset_size or detector.lanczos_steps makes it faster",
            )

    def close(self) -> None:
        """Ends the detector's thread."""
        measurement, self.measurement = self.measurement, None
        if measurement is None:
            return
        try:
            error = measurement.exception(_PATIENCE_S)
            problem = f"{type(error).__name__}: {error}" if error else ""
        except TimeoutError:
            problem = f"it still measures after {_PATIENCE_S:g} s"
        if problem:
            self._parts.events.append("detection_failed", error=problem)
