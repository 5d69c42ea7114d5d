"""Measures the current policy's signals for scalers, in a thread: in parallel with training, or while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from runtime.detector.interfaces import Detected, Detector
from runtime.errors import BudgetError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.learner.interfaces import DetectorSamples
from runtime.records.state import State

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater

_PATIENCE_S = 5.0
"""Seconds that an ending run waits for a measurement."""


def make_detector(experiment: ResolvedExperiment) -> Detector:
    """Makes the detector of the signals that the scaler reads."""
    # Imported late: torch takes seconds to import.
    from runtime.detector.convexity import ConvexityDetector

    settings = experiment.detector
    return ConvexityDetector(
        settings.objective, settings.subset_size, settings.lanczos_steps, seed=experiment.seed
    )


@dataclass(frozen=True)
class Measured:
    """A finished measurement.

    Attributes:
        detected: The signals.
        seconds: How long it took.
        samples: Samples of each product.
    """

    detected: Detected
    seconds: float
    samples: int


class Detection:
    """Keeps the samples for the next measurement, and measures."""

    def __init__(
        self,
        detector: Detector,
        updater: Updater,
        *,
        signals: frozenset[str],
        subset_size: int,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Starts without samples.

        Args:
            updater: Provides the objective at the current policy.
            signals: Signals that the scaler reads; without any, nothing is measured.
            subset_size: Samples that are enough for a measurement.
            timeout_s: Longest measurement that training waits for.
            clock: Monotonic seconds.
        """
        self._detector = detector
        self._updater = updater
        self._subset_size = subset_size
        self._timeout_s = timeout_s
        self._clock = clock
        self._is_wanted = bool(signals)
        self._samples: DetectorSamples | None = None
        self._parts: list[DetectorSamples] = []
        self._newest: Measurement | None = None

    @property
    def can_measure(self) -> bool:
        """Whether a signal is wanted and there are samples of an earlier round."""
        return self._samples is not None

    def close(self) -> None:
        """Waits a little for a measurement that nothing needs any more, because its thread uses the learner."""
        if self._newest is not None:
            wait([self._newest], _PATIENCE_S)

    def add(self, samples: DetectorSamples) -> None:
        """Adds an update's samples; of a round, only the last updates with enough samples are kept."""
        if not self._is_wanted:
            return
        self._parts.append(samples)
        while sum(map(_size, self._parts[1:])) >= self._subset_size:
            del self._parts[0]

    def end_round(self) -> None:
        """Keeps a subset of the round's samples for the next measurement; nothing if no scaler reads it."""
        if self._is_wanted:
            self._samples = self._detector.select(_joined(self._parts))
        self._parts = []

    def begin(self) -> Measurement | None:
        """Begins to measure the newest policy in a thread; None if there is nothing to measure."""
        if self._samples is None:
            return None
        problem = self._updater.curvature_problem(self._detector.objective, self._samples)
        count = _size(self._samples)
        self._newest = Measurement(lambda: self._detector.measure(problem), count, self._clock)
        return self._newest

    def measure(self) -> Measured | None:
        """Measures the newest policy, and waits for that; None if there is nothing to measure.

        Raises:
            BudgetError: It took too long.
        """
        if (measurement := self.begin()) is None:
            return None
        try:
            return measurement.result(self._timeout_s)
        except TimeoutError:
            raise BudgetError(
                f"detection took longer than learner.update_timeout_s = {self._timeout_s:g}; raise that"
            ) from None

    def get_state(self) -> State:
        """Returns the samples."""
        return State({} if self._samples is None else dict(vars(self._samples)), {})

    def set_state(self, state: State) -> None:
        """Restores the samples."""
        self._samples = DetectorSamples(**state.arrays) if state.arrays else None


class Measurement(Future[Measured]):
    """One measurement in its own thread. The process can end without waiting for it."""

    def __init__(
        self, measure: Callable[[], Detected], samples: int, clock: Callable[[], float]
    ) -> None:
        """Starts the thread; ``samples`` are those of each product."""
        super().__init__()
        started_s = clock()

        def run() -> None:
            try:
                self.set_result(Measured(measure(), clock() - started_s, samples))
            except BaseException as error:
                self.set_exception(error)

        threading.Thread(target=run, name="detector", daemon=True).start()


def _joined(parts: Sequence[DetectorSamples]) -> DetectorSamples:
    if len(parts) == 1:
        return parts[0]
    return DetectorSamples(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    )


def _size(samples: DetectorSamples) -> int:
    return len(samples.advantages)
