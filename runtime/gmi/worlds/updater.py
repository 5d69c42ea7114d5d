"""The updater of instances with worlds: in each round, all instances play and then train together.

One request to each instance is a whole round. Samples and episodes never leave its device; the answer tells which
episodes ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor.inline import from_text
from runtime.errors import RunError
from runtime.fleet.interfaces import Invocation
from runtime.gmi.fleet import InstancesFleet, WorldsPlan
from runtime.gmi.updater import InstancesUpdater
from runtime.learner.functions.invoking import ATTEMPTS, Remote
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import Learner, Update
from runtime.records.state import State

_PREFIX = "worlds."
_SAVE_LIMIT_S = 60.0
_EPISODE_TYPES = {"returns": np.float64, "lengths": np.int64, "first_versions": np.int64}


@dataclass(frozen=True)
class WorldsRound:
    """A round to play and train on.

    Attributes:
        policy_versions: The version that acts in each world, int64 ``[W]``.
    """

    round_index: int
    policy_versions: np.ndarray


@dataclass(frozen=True)
class PlayedRound:
    """A round that was played and trained on.

    Attributes:
        update: Its update.
        env_steps: Environment steps of all worlds.
        play_s: Seconds of playing, of the slowest instance.
        episodes: The episodes that ended, by instance: ``episode_returns``, ``episode_lengths`` and
            ``episode_first_versions``.
    """

    update: Update
    env_steps: int
    play_s: float
    episodes: Sequence[dict[str, np.ndarray]]


class WorldsUpdater(InstancesUpdater):
    """Lets instances play and train. Its state includes the worlds' states, if the environment has any.

    Attributes:
        plan: The worlds.
    """

    def __init__(
        self,
        learner: Learner,
        remote: Remote,
        instances: InstancesFleet,
        plan: WorldsPlan,
        **options: Any,
    ) -> None:
        """Takes over a mirror; see `InstancesUpdater`."""
        self._resumed: dict[int, dict[str, np.ndarray]] = {}
        self._answers: Sequence[Mapping[str, Any]] = []
        self.plan = plan
        super().__init__(learner, remote, instances, **options)

    def begin_round(self, round_index: int, *, progress: float) -> None:
        """Asks all instances for a round.

        Args:
            progress: Fraction of the training that is done.
        """
        versions = np.full(sum(self.plan.counts), self.policy_version, np.int64)
        shares: dict[int, Sequence[int]] = {
            instance: [] for instance in range(len(self.plan.counts))
        }
        self._train(WorldsRound(round_index, versions), shares, progress, attempt=0)

    def end_round(self) -> PlayedRound:
        """Waits for the round, and returns it; see `poll` for errors."""
        update = self.awaited()
        episodes = [
            {
                f"episode_{name}": np.frombuffer(from_text(answer["episodes"][name]), kind)
                for name, kind in _EPISODE_TYPES.items()
            }
            for answer in self._answers
        ]
        play_s = max((answer["play_s"] for answer in self._answers), default=0.0)
        return PlayedRound(update, sum(self.plan.counts) * self.plan.steps, play_s, episodes)

    def get_state(self) -> State:
        """Returns the learner's state, and asks the instances for that of their worlds.

        Raises:
            RunError: An instance does not save its worlds.
        """
        state = super().get_state()
        arrays = dict(state.arrays)
        failed = dict.fromkeys(range(len(self.plan.counts)), "")
        for attempt in range(ATTEMPTS):
            failed = self._save(failed, arrays, attempt)
        if failed:
            raise RunError(f"instances did not save their worlds in {ATTEMPTS} tries: {failed}")
        return State(arrays, state.values)

    def _save(
        self, instances: Iterable[int], arrays: dict[str, np.ndarray], attempt: int
    ) -> dict[int, str]:
        """Adds the states of these instances' worlds to a state's arrays; returns the errors of those that failed."""
        token, version = self._token, self.policy_version
        names = {f"{token}-save-{version}-{attempt}-{one}": one for one in instances}
        shared = {"store": self._remote.store, "token": token}
        self._remote.fleet.start(
            [
                Invocation(
                    name,
                    {"invocation_id": name, "instance": instance, "saves": name, **shared},
                    limit_s=_SAVE_LIMIT_S,
                )
                for name, instance in names.items()
            ]
        )
        failed, awaited = dict[int, str](), set(names)
        while awaited:
            for outcome in self._remote.fleet.wait(_SAVE_LIMIT_S):
                awaited.discard(outcome.invocation_id)
                if outcome.status != "ok" and outcome.invocation_id in names:
                    failed[names[outcome.invocation_id]] = outcome.error
        for name, instance in names.items():
            if (data := self._store.get(name)) is not None:
                saved = decode_state(data).arrays
                arrays |= {f"{_PREFIX}{instance}.{key}": array for key, array in saved.items()}
        self._store.delete(names)
        return failed

    def set_state(self, state: State) -> None:
        """Continues from a state. The instances find that of their worlds in the store when they make them."""
        self._resumed = {}
        for name, array in state.arrays.items():
            if name.startswith(_PREFIX):
                instance, _, key = name.removeprefix(_PREFIX).partition(".")
                self._resumed.setdefault(int(instance), {})[key] = array
        own = {name: array for name, array in state.arrays.items() if not name.startswith(_PREFIX)}
        super().set_state(State(own, state.values))

    def _fill_store(self) -> None:
        super()._fill_store()
        for instance, arrays in self._resumed.items():
            self._put(self._stored_name(instance), encode_state(State(arrays, {})))

    def _stored_name(self, instance: int) -> str:
        return object_name(self._token, "worlds", instance)

    def _part(self, batch: WorldsRound, columns: Sequence[int]) -> dict[str, Any]:
        stored = [self._stored_name(one) for one in range(len(self.plan.counts))]
        asked = {"round_index": batch.round_index, "stored": stored if self._resumed else []}
        return {"worlds": {**vars(self.plan), **asked}}

    def _take(self, request: Any, data: bytes) -> None:
        super()._take(request, data)
        # An instance that is replaced later begins new episodes.
        self._resumed = {}
        self._answers = request.answers
