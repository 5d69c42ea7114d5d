"""Open episodes, which a fragment left unfinished and a later actor continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from runtime.fleet.actors import OpenEpisodeRecord, Trajectory
from runtime.records.observers import EventSink
from runtime.records.state import State

SUSPICIONS_MAX = 2
"""An open episode is dropped after this many suspicions, because its continuations would raise forever."""


class OpenEpisodes:
    """The open episodes of a run, oldest first.

    Attributes:
        waiting: All of them, including those that an actor currently continues.
        dropped: Number dropped since the last `take_dropped`.
    """

    def __init__(self, events: EventSink) -> None:
        """Starts without episodes.

        Args:
            events: Records dropped episodes.
        """
        self._events = events
        self._suspicions: Counter[str] = Counter()
        self.waiting: list[OpenEpisodeRecord] = []
        self.dropped = 0

    def take_over(self, trajectories: Sequence[Trajectory]) -> None:
        """Removes the episodes that these trajectories continued, and queues those that they left open, in order."""
        continued = {continued_episode(trajectory) for trajectory in trajectories}
        self.waiting = [record for record in self.waiting if record.episode_id not in continued] + [
            OpenEpisodeRecord(
                f"{int(trajectory['round_index'])}-{int(trajectory['slot'])}",
                bytes(trajectory["open_episode"]),
            )
            for trajectory in trajectories
            if len(trajectory["open_episode"])
        ]
        for episode_id in continued:
            self._suspicions.pop(episode_id, None)

    def suspect(self, episode_id: str, error: str) -> None:
        """Records that every try to continue this episode raised; drops it the second time.

        Args:
            error: Error of the last try.
        """
        self._suspicions[episode_id] += 1
        if self._suspicions[episode_id] >= SUSPICIONS_MAX:
            del self._suspicions[episode_id]
            self.dropped += 1
            self.waiting = [record for record in self.waiting if record.episode_id != episode_id]
            self._events.append("episode_dropped", episode_id=episode_id, error=error)

    def take_dropped(self) -> int:
        """Returns the number dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped

    def not_in(self, episode_ids: Iterable[str]) -> list[OpenEpisodeRecord]:
        """Returns the open episodes except these, oldest first."""
        taken = set(episode_ids)
        return [record for record in self.waiting if record.episode_id not in taken]

    def get_state(self) -> State:
        """Returns the episodes, without their suspicions."""
        return State(
            {
                str(index): np.frombuffer(record.data, np.uint8)
                for index, record in enumerate(self.waiting)
            },
            {
                "episode_ids": [record.episode_id for record in self.waiting],
                "dropped": self.dropped,
            },
        )

    def set_state(self, state: State) -> None:
        """Replaces all by those of ``state``."""
        self.dropped = state.values["dropped"]
        self.waiting = [
            OpenEpisodeRecord(episode_id, state.arrays[str(index)].tobytes())
            for index, episode_id in enumerate(state.values["episode_ids"])
        ]


def continued_episode(trajectory: Trajectory) -> str:
    """Returns the id of the episode that this trajectory continued; empty if it began a new one."""
    return bytes(trajectory["continued_episode"]).decode()
