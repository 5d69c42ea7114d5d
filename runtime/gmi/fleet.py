"""A fleet of instances. Trajectories remain in the instances, which report only episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.fleet.inline import InlineFleet, ShieldedFleet
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.gmi.devices import Place
from runtime.money.work import Outcome

INSTANCE_HANDLER = "runtime.gmi.worker:handler"
INSTANCES_HANDLER = f"{INSTANCE_HANDLER}_together"
"""Handler of the processes, in the form that fleets take it, for one event or several at a time."""


@dataclass(frozen=True)
class WorldsPlan:
    """The worlds of a batched environment, and how instances play them.

    Attributes:
        environment: See `runtime.gmi.worlds.batched.make_worlds`.
        counts: Worlds of each instance.
        steps: Steps of a world in a round.
        seed: The experiment's.
        tf32: Whether a GPU multiplies matrices in TF32.
        timeout_s: Longest time to play a round.
    """

    environment: Mapping[str, Any]
    counts: Sequence[int]
    steps: int
    seed: int
    tf32: bool
    timeout_s: float


class InstancesFleet(InlineFleet):
    """A fleet of instances, one process each. Like an `InlineFleet`, it is also the run's cache.

    The instances take slots in turn: slot ``s`` always belongs to instance ``s mod n``.

    Attributes:
        places: The instances' parts of the machine.
        reduction: How they sum gradients; auto = by Algorithm 1.
        processes: Id of the process that last answered, by instance.
        memory: Fields about shared memory for all events; empty if instances share none.
        worlds: The worlds that they play; None if they play slots.
    """

    memory: Mapping[str, Any] = {}

    def __init__(
        self,
        fleet: Fleet,
        places: Sequence[Place],
        *,
        reduction: str,
        worlds: WorldsPlan | None = None,
    ) -> None:
        """Carries messages for a local fleet. Closing this also closes that fleet.

        Args:
            fleet: One process for each instance.
            places: The instances' parts of the machine.
            reduction: ``learner.reduction``.
            worlds: See above.
        """
        super().__init__(fleet)
        self.worlds = worlds
        self.places = places
        self.reduction = reduction
        self.processes = dict[int, int]()
        self._played: dict[str, Mapping[str, Any]] = {}

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Does nothing: the instances have the weights."""

    def shares(self, slots: Sequence[int], steps: Sequence[int]) -> dict[int, list[int]]:
        """Returns which trajectories of a batch each instance trains on: its own.

        Args:
            slots: Slot of each trajectory.
            steps: Steps of each trajectory.

        Returns:
            By instance, ascending, the indices of its trajectories. Instances without trajectories are left out.
        """
        found: dict[int, list[int]] = {}
        for column, slot in enumerate(slots):
            found.setdefault(self.instance_of(slot), []).append(column)
        return dict(sorted(found.items()))

    def event_of(self, invocation_id: str) -> Mapping[str, Any]:
        """Returns the event of a trajectory, with which an instance can train on it or play it again."""
        return self._played[invocation_id]

    def forget(self) -> None:
        """Forgets the round's events, after training on its trajectories."""
        self._played.clear()

    def instance_of(self, slot: int) -> int:
        """Returns the instance that plays a slot."""
        return slot % len(self.places)

    def _loaded(self, invocation: Invocation) -> Invocation:
        event = dict(invocation.event)
        is_actor = "slot" in event
        if is_actor:
            event |= {
                "instance": self.instance_of(event["slot"]),
                "episode": self._episodes.get(event["episode_id"], ""),
            }
        place = self.places[event["instance"]]
        event |= {"cores": list(place.cores), "variables": dict(place.variables), **self.memory}
        if is_actor:
            self._played[invocation.invocation_id] = event
        return replace(invocation, process=event["instance"], event=event)

    def _passed(self, outcome: Outcome) -> Outcome:
        if outcome.response is not None and "instance" in outcome.response:
            self.processes[outcome.response["instance"]] = outcome.response["process"]
        elif outcome.status != "ok" and (event := self._played.get(outcome.invocation_id)):
            # Usually another process replaces it.
            self.processes.pop(event["instance"], None)
        return super()._passed(outcome)


def instances_behind(fleet: Fleet) -> InstancesFleet:
    """Returns the instances of a fleet that is known to shield some from signals."""
    assert isinstance(fleet, ShieldedFleet) and isinstance(fleet.inside, InstancesFleet)
    return fleet.inside
