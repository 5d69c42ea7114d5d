"""The two fleets of ``layout: asynchronous``: instances that play, and instances that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lambda_actor.inline import LATE
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.gmi.devices import Place
from runtime.gmi.fleet import InstancesFleet
from runtime.gmi.sharing.migrator import Migrator, routes
from runtime.learner.functions.store import Store, StoreError, object_name
from runtime.money.work import Outcome


class ServingFleet(InstancesFleet):
    """The instances that play: each writes its fragments into chunks, and reports their episodes."""

    def __init__(
        self,
        fleet: Fleet,
        places: Sequence[Place],
        *,
        migrator: Migrator,
        store: Store,
        token: str,
    ) -> None:
        """Carries messages for a local fleet. Closing this also closes that fleet.

        Args:
            fleet: One process for each instance.
            places: The instances' parts of the machine.
            migrator: Assigns the chunk of each fragment.
            store: Where instances find weights.
            token: Prefix of their names.
        """
        super().__init__(fleet, places, reduction="")
        self._migrator = migrator
        self._store = store
        self._token = token
        self.memory = migrator.memory

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Stores a policy version for the instances."""
        self._store.put(object_name(self._token, "weights", policy_version), weights)

    def forget_weights(self, policy_version: int) -> None:
        """Drops a version that no new actor will use."""
        # The whole store is removed with the run.
        with suppress(StoreError):
            self._store.delete([object_name(self._token, "weights", policy_version)])

    def take(self, invocation_id: str) -> bytes | None:
        """Closes an invocation for good. Returns its report of the trajectory, if that has arrived."""
        if self._doors.get(invocation_id) is not None:
            # Also for a refused fragment.
            self._migrator.give(invocation_id)
        return super().take(invocation_id)

    def _loaded(self, invocation: Invocation) -> Invocation:
        chunk = self._migrator.place(invocation.invocation_id)
        return super()._loaded(replace(invocation, event={**invocation.event, "chunk": chunk}))

    def _passed(self, outcome: Outcome) -> Outcome:
        passed = super()._passed(outcome)
        self._played.pop(outcome.invocation_id, None)
        if passed.status != "ok" or passed.response is None or passed.response["status"] == LATE:
            self._migrator.release(outcome.invocation_id)
        return passed


class TrainingFleet(InstancesFleet):
    """The instances that train: each reads from its chunks the fragments that the migrator routes to it."""

    def __init__(
        self,
        fleet: Fleet,
        places: Sequence[Place],
        serving: ServingFleet,
        migrator: Migrator,
        *,
        reduction: str,
    ) -> None:
        """Carries messages for a local fleet. Closing this also closes that fleet.

        Args:
            fleet: One process for each instance.
            places: The instances' parts of the machine.
            serving: The instances that play.
            migrator: Knows where their fragments are.
            reduction: ``learner.reduction``.
        """
        super().__init__(fleet, places, reduction=reduction)
        self._serving = serving
        self._migrator = migrator
        self.memory = migrator.memory

    def shares(self, slots: Sequence[int], steps: Sequence[int]) -> dict[int, list[int]]:
        """Returns which trajectories of a batch each instance trains on; see `routes`."""
        playing = [self._serving.places[self._serving.instance_of(slot)].device for slot in slots]
        return routes(steps, playing, [place.device for place in self.places])

    def event_of(self, invocation_id: str) -> Mapping[str, Any]:
        """Returns where an instance finds a trajectory."""
        return {"invocation_id": invocation_id, "chunk": self._migrator.chunk_of(invocation_id)}

    def forget(self) -> None:
        """Frees the chunks of trained fragments."""
        self._migrator.release_given()
