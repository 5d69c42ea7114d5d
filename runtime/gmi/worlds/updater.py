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
from runtime.gmi.updater import InstancesUpdater
from runtime.learner.functions.invoking import ATTEMPTS
from runtime.learner.functions.messages import decode_state, encode_state
from runtime.learner.functions.store import object_name
from runtime.records.state import State

_PREFIX = "worlds."
_SAVE_LIMIT_S = 60.0


@dataclass(frozen=True)
class WorldsRound:
    """A round to play and train on.

    Attributes:
        policy_versions: The version that acts in each world, int64 ``[W]``.
    """

    round_index: int
    policy_versions: np.ndarray


class WorldsUpdater(InstancesUpdater):
    """Lets instances play and train; see `runtime.learner.in_place.InPlaceUpdater`.

    Its state includes the worlds' states, if the environment has any.

    Attributes:
        counts: Worlds of each instance.
        steps: Environment steps of a round.
        answers: What each instance told of the last round: ``play_s`` and ``episodes``.
    """

    plays = True

    def __init__(self, learner: Any, remote: Any, **options: Any) -> None:
        """Takes over a mirror; see `InstancesUpdater`."""
        self._resumed: dict[int, dict[str, np.ndarray]] = {}
        self._worlds: Mapping[str, Any] = remote.fleet.inside.worlds
        self.counts: Sequence[int] = self._worlds["counts"]
        self.steps: int = sum(self.counts) * self._worlds["steps"]
        self.answers: list[Mapping[str, Any]] = []
        super().__init__(learner, remote, **options)

    def begin_round(self, round_index: int, *, progress: float) -> None:
        """Asks all instances for a round, whose update `poll` returns.

        Args:
            progress: Fraction of the training that is done.
        """
        versions = np.full(sum(self.counts), self.policy_version, np.int64)
        shares: dict[int, Sequence[int]] = {instance: [] for instance in range(len(self.counts))}
        self._train(WorldsRound(round_index, versions), shares, progress, attempt=0)

    @property
    def episodes(self) -> list[dict[str, np.ndarray]]:
        """The episodes that ended in the last round, by instance."""
        types = {"returns": np.float64, "lengths": np.int64, "first_versions": np.int64}
        return [
            {name: np.frombuffer(from_text(one["episodes"][name]), types[name]) for name in types}
            for one in self.answers
        ]

    def get_state(self) -> State:
        """Returns the learner's state, and asks the instances for that of their worlds.

        Raises:
            RunError: An instance does not save its worlds.
        """
        state = super().get_state()
        arrays = dict(state.arrays)
        failed = dict.fromkeys(range(len(self.counts)), "")
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
        stored = [self._stored_name(one) for one in range(len(self.counts))]
        asked = {"round_index": batch.round_index, "stored": stored if self._resumed else []}
        return {"worlds": {**self._worlds, **asked}}

    def _take(self, request: Any, data: bytes) -> None:
        super()._take(request, data)
        # An instance that is replaced later begins new episodes.
        self._resumed = {}
        self.answers = request.answers
