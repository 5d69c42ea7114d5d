"""The updater of instances: each has the learner and computes gradients on its own trajectories.

    1. the fleet has distributed the round's slots, and the instances have kept their trajectories;
    2. each instance is asked for its part of the update, and they sum what they share (`runtime.learner.share`);
    3. the first one puts the next version into the store, and it is mirrored here.

An instance that dies costs only time. It is replaced from the state of the previous version and plays its slots again,
so the next version is the same to the bit.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.spaces import Spaces
from runtime.fleet.actors import Trajectory
from runtime.fleet.processes import socket_parent
from runtime.gmi.fleet import InstancesFleet
from runtime.gmi.group import call_off, reductions
from runtime.gmi.trainer import encode_learner, learner_name
from runtime.learner.functions.invoking import ATTEMPTS, InvokingUpdater, ObjectRequest, Remote
from runtime.learner.functions.messages import decode_result, encode_state
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import Batch, Learner, Update
from runtime.money.work import Outcome
from runtime.records.state import State


@dataclass(frozen=True)
class KeptBatch(Batch):
    """A batch whose samples remain in the instances. Its arrays of steps are empty.

    Attributes:
        invocation_ids: The actor of each trajectory.
        slots: The slot of each trajectory.
        clip_rewards: Whether only the sign of each reward counts.
    """

    invocation_ids: tuple[str, ...]
    slots: tuple[int, ...]
    clip_rewards: bool


@dataclass
class _Together(ObjectRequest):
    """An update that several instances make together.

    Attributes:
        batch: What they train on, with ``policy_versions`` as in a `Batch`.
        shares: Indices of each participating instance's trajectories, by instance, ascending. Its place here is its
            rank.
        progress: Fraction of the training that is done.
        answers: Answers of the successful ones.
        lost_at_s: When one was lost, by the monotonic clock; None = all are there.
    """

    batch: Any
    shares: Mapping[int, Sequence[int]]
    progress: float
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    lost_at_s: float | None = None


class InstancesUpdater(InvokingUpdater[_Together]):
    """Trains in all instances on their own trajectories; see `runtime.learner.updaters.Updater`.

    Attributes:
        learner: The mirror: it holds the newest version, and never trains.
    """

    def __init__(
        self,
        learner: Learner,
        remote: Remote,
        instances: InstancesFleet,
        *,
        device: str = "cpu",
        timeout_s: float = math.inf,
    ) -> None:
        """Takes over a mirror, and sends the instances the learner's specification.

        Args:
            instances: Those that train; ``remote`` invokes them.
            device: The instances' device, ``cpu`` or ``cuda``.
            timeout_s: Maximum seconds of an update.
        """
        super().__init__(learner, remote)
        self._device = device
        self._timeout_s = timeout_s
        # Replace an instance that hangs while there is time to ask again.
        self._patience_s = timeout_s / (ATTEMPTS + 1)
        self._instances = instances
        # The last group of the processes, and its name.
        self._generation = 0
        self._met = list[tuple[int, int | None]]()
        self._seen: dict[int, int] = {}
        # In the store, which a run empties when it begins, unless sockets' paths would be too long there.
        Path(remote.store).mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.mkdtemp(prefix="gmi-", dir=socket_parent(remote.store))
        self._fill_store()

    @property
    def _token(self) -> str:
        return self._remote.token

    @property
    def _path(self) -> str:
        """Where the group meets."""
        return f"{self._folder}/{self._generation}"

    def assemble(
        self, trajectories: Sequence[Trajectory], spaces: Spaces, *, clip_rewards: bool
    ) -> KeptBatch:
        """Returns which trajectories make up the batch, without moving them."""
        empty = np.empty((0, len(trajectories)))
        return KeptBatch(
            policy_versions=np.array(
                [int(one["policy_version"]) for one in trajectories], np.int64
            ),
            lengths=np.array([int(one["steps"]) for one in trajectories], np.int64),
            observations=empty,
            actions=empty,
            log_probs=empty,
            rewards=empty,
            terminated=empty,
            bootstrap_mask=empty,
            bootstrap_observations=empty,
            invocation_ids=tuple(wire.field_text(one["invocation_id"]) for one in trajectories),
            slots=tuple(int(one["slot"]) for one in trajectories),
            clip_rewards=clip_rewards,
        )

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Asks the instances for their parts of the update."""
        assert isinstance(batch, KeptBatch), "as `assemble` returns it"
        shares = self._instances.shares(batch.slots, batch.lengths.tolist())
        self._train(batch, shares, float(progress), attempt=0)

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the update if it has ended. If an instance was lost, asks all of them again.

        The others notice a death themselves. Those that hang are given up when they should have noticed.
        """
        updates = super().poll(min(timeout_s, self._patience_s))
        late_s = time.monotonic() - self._patience_s
        if any(
            one.lost_at_s is not None and one.lost_at_s < late_s for one in self._running.values()
        ):
            self._remote.fleet.abandon(sorted(self._running))
        return updates

    def set_state(self, state: State) -> None:
        """Continues from a state, which the instances find in the store."""
        super().set_state(state)
        self._fill_store()

    def close(self) -> None:
        """Gives up the current update, and empties the store."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _fill_store(self) -> None:
        """Puts the learner's specification and state into the store, and removes everything else."""
        self._delete(self._names)
        self._put(learner_name(self._token), encode_learner(self._spec, self._device))
        self._put(
            object_name(self._token, "state", self.policy_version),
            encode_state(self.learner.get_state()),
        )

    def _train(
        self,
        batch: Any,
        shares: Mapping[int, Sequence[int]],
        progress: float,
        *,
        attempt: int,
    ) -> None:
        """Asks the instances for their parts of an update."""
        version, fleet = self.policy_version, self._instances
        met = [(one, fleet.processes.get(one)) for one in shares]
        for one, process in met:
            if process is not None and self._seen.setdefault(one, process) != process:
                self._seen[one] = process
                self._remote.events.append("instance_replaced", instance=one)
        if met != self._met:
            self._generation += 1
            self._met = met
        devices = [fleet.places[one].device for one in shares]
        # The configured reduction suits the whole layout, and maybe not these instances alone.
        suitable = reductions(devices)
        reduction = fleet.reduction if fleet.reduction in suitable else suitable[0]
        events = {
            f"{self._token}-train-{version}-{attempt}-{instance}": {
                "instance": instance,
                "policy_version": version,
                "progress": progress,
                **self._part(batch, columns),
                "group": {
                    "rank": rank,
                    "devices": devices,
                    "path": self._path,
                    "reduction": reduction,
                    "timeout_s": self._patience_s,
                },
            }
            for rank, (instance, columns) in enumerate(shares.items())
        }
        name = object_name(self._token, "result", version + 1)
        request = _Together(name, None, attempt, batch, shares, progress)
        self._ask(request, events, limit_s=self._timeout_s)

    def _part(self, batch: Any, columns: Sequence[int]) -> dict[str, Any]:
        """Returns what an instance is asked to train on, given its trajectories' indices."""
        return {
            "clip_rewards": batch.clip_rewards,
            "slots": [self._instances.event_of(batch.invocation_ids[one]) for one in columns],
            "columns": columns,
            "lengths": batch.lengths.tolist(),
        }

    def _ended(self, request: _Together, outcome: Outcome) -> None:
        if outcome.status == "ok" and outcome.response is not None:
            request.answers.append(outcome.response)
        elif request.lost_at_s is None:
            request.lost_at_s = time.monotonic()
            # Members that wait for the group to form would wait in vain.
            call_off(self._path)
        if outcome.status == "crashed":
            # Most other errors come from members that missed the lost one.
            request.error = outcome.error
        super()._ended(request, outcome)

    def _again(self, request: _Together) -> None:
        # Even if all are alive, one has left the group, and the store may have lost something.
        self._met = []
        self._fill_store()
        self._train(request.batch, request.shares, request.progress, attempt=request.attempt + 1)

    def _take(self, request: _Together, data: bytes) -> None:
        state, update = decode_result(data)
        self.learner.set_state(state)
        answers = request.answers
        if request.lost_at_s is not None:
            # The version exists, but a part of the group is gone.
            self._met = []
        shares = {
            name: float(np.mean([one[name] for one in answers])) if answers else 0.0
            for name in ("reduce_s", "reduce_wait_s")
        }
        self.ended.append(
            replace(
                update,
                staleness=self.policy_version - 1 - request.batch.policy_versions,
                columns={
                    "instances": len(request.shares),
                    **shares,
                    "instance_memory_mib": max((one["memory_mib"] for one in answers), default=0.0),
                },
            )
        )
        self._delete(self._names - {learner_name(self._token), request.name})
        self._instances.forget()
