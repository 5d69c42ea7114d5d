"""One round of a stream: its size, its deadlines, and its training so far."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.experiment.resolved import ResolvedExperiment
from runtime.learner.interfaces import DetectorSamples
from runtime.money.work import Limits, RoundBill
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.progress import Progress
from runtime.training.updating import RoundTraining


@dataclass(frozen=True)
class StreamedAttempt:
    """One attempt at a round.

    Attributes:
        deadline_s: Until when it waits for trajectories, by the clock.
        ends_s: Until when it must have ended, by the clock.
        learned_before_s: Seconds of the updates of earlier attempts.
    """

    limits: Limits
    deadline_s: float = 0.0
    ends_s: float = 0.0
    learned_before_s: float = 0.0


@dataclass
class StreamedRound:
    """One round until its row is written, including rejected attempts.

    Attributes:
        decision: Its number of actors: the minimum until the scaler has decided.
        attempt: The current one.
        samples: Samples of its last updates, for the detector.
        policy_version: The newest one when it began.
        started_s: When it began.
        waited_s: Seconds in which the learner had nothing to do.
        bills: Bills of its attempts.
        numbers: Numbers of the next actors. With its number an actor gets its own random numbers, and a resumed round
            draws the same again.
        most_in_flight: The most actors at the same time.
        most_reserved_usd: The highest reservation, in dollars.
        is_shrunk: Whether the budget held fewer actors than were wanted.
    """

    experiment: ResolvedExperiment
    progress: Progress
    round_index: int
    decision: ScalingDecision
    attempt: StreamedAttempt
    policy_version: int
    started_s: float
    is_decided: bool = False
    measured: Measured | None = None
    training: RoundTraining = field(default_factory=RoundTraining)
    samples: deque[DetectorSamples] = field(default_factory=deque)
    waited_s: float = 0.0
    bills: list[RoundBill] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    most_in_flight: int = 0
    most_reserved_usd: float = 0.0
    is_shrunk: bool = False

    @property
    def steps_wanted(self) -> int:
        """Environment steps that it should have."""
        return self.decision.actor_count * self.experiment.actor.fragment_steps

    @property
    def missing_steps(self) -> int:
        """Environment steps still to train on in this round."""
        missing, fragment_steps = (
            self.steps_wanted - self.training.env_steps,
            self.experiment.actor.fragment_steps,
        )
        return min(
            missing, self.progress.room_for(math.ceil(missing / fragment_steps)) * fragment_steps
        )

    @property
    def awaits_decision(self) -> bool:
        """Whether the minimum has been trained on and the scaler has not decided the round's size yet."""
        return not self.is_decided and self.missing_steps <= 0

    @property
    def learned_s(self) -> float:
        """Seconds of the current attempt's updates."""
        return self.training.learn_s - self.attempt.learned_before_s
