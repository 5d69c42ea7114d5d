"""The updates of a stream: trains on what its actors bring as soon as that is enough."""

from __future__ import annotations

from runtime.ports.learning import DetectorSamples
from runtime.training.asynchronous.actors import ActorStream
from runtime.training.asynchronous.round import StreamedRound
from runtime.training.pacings import Parts


class StreamUpdates:
    """Trains on what has arrived, or again on what the updater keeps, and publishes each version."""

    def __init__(self, parts: Parts, actors: ActorStream) -> None:
        """Takes the parts of the run, and who brings trajectories."""
        self._parts, self._actors = parts, actors

    def has_minibatch(self, current: StreamedRound) -> bool:
        """Whether as much has arrived as a gradient step takes, or the round needs no more."""
        return self._actors.steps_arrived >= min(
            current.settings.algorithm.chosen.minibatch_steps, max(1, current.missing_steps))

    def train(self, current: StreamedRound) -> bool:
        """Trains on what has arrived; False if nothing has."""
        if not self._actors.intake.arrived:
            return False
        trajectories = self._actors.hand_over()
        update = self._parts.updating.train(trajectories, current.training, self.limit_s(current))
        if self._parts.detection.is_wanted:
            current.samples.append(update.samples)
            while sum(map(_size, current.samples)) - _size(current.samples[0]) >= current.settings.subset_size:
                current.samples.popleft()
        self._actors.publish()
        return True

    def replay(self, current: StreamedRound) -> bool:
        """Trains on what the updater keeps; False if it may not, or somebody in flight would get too stale by it."""
        # Tightened limits have no time for replays.
        has_learned_enough = current.limits.is_tightened and current.learned_s >= current.limits.collect_s
        if (self._actors.has_stale() or has_learned_enough
                or not self._parts.updating.replay(current.training, self.limit_s(current))):
            return False
        self._actors.publish()
        return True

    def limit_s(self, current: StreamedRound) -> float:
        """What is left of the reserved time, but no more than one update may take."""
        return min(current.ends_s - self._parts.clock(), self._parts.by_the_clock(current.limits).update_s)


def _size(samples: DetectorSamples) -> int:
    return len(samples.advantages)
