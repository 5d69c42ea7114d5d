"""One round of a stream: how large it is to be, how long it may last, and what of it has been trained on."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from runtime.ports.learning import DetectorSamples
from runtime.ports.money import Limits
from runtime.ports.scaling import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.pacings import RoundSettings
from runtime.training.progress import Progress
from runtime.training.updating import RoundTraining


@dataclass
class StreamedRound:
    """One round until its row is written, rejected attempts at it included.

    Attributes:
        decision: How many actors it is to have: those that are due anyway, until the scaler has decided.
        limits: Of the present attempt at it, as the next three.
        deadline_s: Until when trajectories are awaited, by the clock.
        ends_s: Until when it must have ended, by the clock.
        learned_before_s: Modelled seconds of the updates of earlier attempts.
        samples: Of its last updates, for the detector.
    """

    settings: RoundSettings
    progress: Progress
    round_index: int
    decision: ScalingDecision
    limits: Limits
    is_decided: bool = False
    measured: Measured | None = None
    deadline_s: float = 0.0
    ends_s: float = 0.0
    learned_before_s: float = 0.0
    training: RoundTraining = field(default_factory=RoundTraining)
    samples: deque[DetectorSamples] = field(default_factory=deque)

    @property
    def steps_wanted(self) -> int:
        """Environment steps that it is to have."""
        return self.settings.algorithm.round_steps or self.decision.actor_count * self.settings.fragment_steps

    @property
    def missing_steps(self) -> int:
        """Environment steps that have yet to be trained on in this round."""
        missing, fragment_steps = self.steps_wanted - self.training.env_steps, self.settings.fragment_steps
        return min(missing, self.progress.room_for(math.ceil(missing / fragment_steps)) * fragment_steps)

    @property
    def awaits_decision(self) -> bool:
        """Whether all that is due anyway has been trained on, and the scaler has yet to say how large the round is."""
        return not self.is_decided and self.settings.algorithm.round_steps is None and self.missing_steps <= 0

    @property
    def learned_s(self) -> float:
        """Modelled seconds of the present attempt's updates."""
        return self.training.modelled_s - self.learned_before_s
