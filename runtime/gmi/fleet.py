"""The instances as actors: trajectories stay in the instances, which report only the episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime.fleet.inline import InlineFleet
from runtime.gmi.devices import Place
from runtime.ports.fleet import Fleet, Invocation, Outcome

INSTANCE_HANDLER = "runtime.gmi.worker:handler"
INSTANCES_HANDLER = f"{INSTANCE_HANDLER}_together"
"""What the processes run, as fleets take it: one event at a time, or several."""
INSTANCE_FIELDS: dict[str, type] = {"store": str, "token": str, "instance": int, "cores": list, "variables": dict}
"""Fields of every event: the store with the learner's states and the prefix of their names, the instance's number, and
its share of the machine (see `runtime.gmi.devices.Place`)."""


class InstancesFleet(InlineFleet):
    """A fleet of instances, one process each; also the run's cache, as an `InlineFleet` is.

    The instances take slots in turn: slot ``s`` always belongs to instance ``s mod n``.

    Attributes:
        places: Of the instances.
        reduction: How they sum gradients; ``auto`` is settled with the first update.
        processes: Ids of the processes that answered last, by instance.
        memory: What all events say of memory that instances share; nothing if none do.
    """

    memory: Mapping[str, Any] = {}

    def __init__(self, fleet: Fleet, places: Sequence[Place], *, reduction: str, bytes_max: int) -> None:
        """Carries messages for a local fleet, which it closes with itself.

        Args:
            fleet: One process for each instance.
            places: Of the instances.
            reduction: As ``learner.gmi.reduction``.
            bytes_max: Largest message that an instance may bring.
        """
        super().__init__(fleet, bytes_max=bytes_max)
        self.places, self.reduction, self.processes = places, reduction, dict[int, int]()
        self._played: dict[str, Mapping[str, Any]] = {}

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Does nothing: the instances have the weights."""

    def shares(self, slots: Sequence[int], steps: Sequence[int]) -> dict[int, list[int]]:
        """Returns which trajectories of a batch each instance trains on: those that it played.

        Args:
            slots: By trajectory.
            steps: Of each.

        Returns:
            By instance, ascending, the places of its trajectories; instances without any are left out.
        """
        found: dict[int, list[int]] = {}
        for column, slot in enumerate(slots):
            found.setdefault(self.instance_of(slot), []).append(column)
        return dict(sorted(found.items()))

    def event_of(self, invocation_id: str) -> Mapping[str, Any]:
        """Returns what an instance needs to train on a trajectory: the event with which it can play it once more."""
        return self._played[invocation_id]

    def forget(self) -> None:
        """Forgets the round's events, once its trajectories have been trained on."""
        self._played.clear()

    def instance_of(self, slot: int) -> int:
        """Returns which instance plays a slot."""
        return slot % len(self.places)

    def _loaded(self, invocation: Invocation) -> Invocation:
        event = dict(invocation.event)
        is_actor = "slot" in event
        if is_actor:
            event |= {"instance": self.instance_of(event["slot"]),
                      "episode": self._episodes.get(event["episode_id"], "")}
        place = self.places[event["instance"]]
        event |= {"cores": list(place.cores), "variables": dict(place.variables), **self.memory}
        if is_actor:
            self._played[invocation.invocation_id] = event
        return replace(invocation, process=event["instance"], event=event)

    def _passed(self, outcome: Outcome) -> Outcome:
        if outcome.response is not None and "instance" in outcome.response:
            self.processes[outcome.response["instance"]] = outcome.response["process"]
        elif outcome.status != "ok" and (event := self._played.get(outcome.invocation_id)):
            # Another process takes its place, mostly.
            self.processes.pop(event["instance"], None)
        return super()._passed(outcome)
