"""The updater of instances: each has the learner and computes gradients on its own trajectories.

    1. the fleet has distributed the round's slots, and the instances have kept their trajectories;
    2. each instance is asked for its part of the update, and they sum what they share (`runtime.learner.share`);
    3. the first one puts the next version into the store, and it is mirrored here.

An instance that dies costs only time. It is replaced from the state of the previous version and plays its slots again,
so the next version is the same to the bit.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from lambda_actor import wire
from lambda_actor.errors import WireError
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError, RunError
from runtime.gmi.costs import applicable
from runtime.gmi.mesh import call_off, remove_directory
from runtime.gmi.trainer import HOST, encode_learner, learner_name
from runtime.learner.remote.messages import decode_result, encode_state
from runtime.learner.remote.store import result_name, state_name
from runtime.learner.remote.updater import ATTEMPTS, Remote, RemoteUpdater
from runtime.ports.fleet import Invocation, Outcome
from runtime.ports.learning import Batch, Learner, State, Together, Update
from runtime.ports.sampling import Trajectory

_STORE_TIMEOUT_S = 120.0
_PATIENCE_S = 2.0
"""Seconds that the other instances have to end after one is lost, before they are killed."""


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
class _Pending:
    """An update that is under way.

    Attributes:
        shares: Indices of each participating instance's trajectories, by instance, ascending. Its place here is its
            rank.
        awaited: Ids of their invocations.
        answers: Answers of the successful ones.
        problem: Error of an unsuccessful one.
        lost_at_s: When the problem was noticed, by the monotonic clock.
    """

    batch: KeptBatch
    progress: float
    shares: Mapping[int, Sequence[int]]
    attempt: int
    awaited: set[str]
    answers: list[Mapping[str, Any]]
    problem: str = ""
    lost_at_s: float = 0.0


class InstancesUpdater(RemoteUpdater):
    """Trains in all instances on their own trajectories; see `runtime.ports.learning.Updater`.

    Attributes:
        learner: The mirror: it holds the newest version, and never trains.
    """

    def __init__(self, learner: Learner, remote: Remote) -> None:
        """Takes over a mirror, and sends the instances the learner's specification."""
        super().__init__(learner, remote)
        self._instances, self._reduction = remote.instances, remote.instances.reduction
        self._pending: _Pending | None = None
        # The last group of the processes, and its name.
        self._generation, self._met = 0, list[tuple[int, int | None]]()
        self._seen: dict[int, int] = {}
        # Bind the socket here, so that only this machine can reach it.
        listener = socket.create_server((HOST, 0))
        self._port = listener.getsockname()[1]
        self._meeting = TCPStore(
            HOST,
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_STORE_TIMEOUT_S),
            master_listen_fd=listener.detach(),
        )
        self._fill_store()

    @property
    def _token(self) -> str:
        return self._remote.token

    def assemble(
        self, trajectories: Sequence[Trajectory], spaces: Spaces, *, clip_rewards: bool
    ) -> KeptBatch:
        """Returns which trajectories make up the batch, without moving them."""
        count, empty = len(trajectories), np.empty((0, len(trajectories)))
        return KeptBatch(
            policy_versions=np.array(
                [int(one["policy_version"]) for one in trajectories], np.int64
            ),
            lengths=np.array([int(one["steps"]) for one in trajectories], np.int64),
            observations=empty,
            actions=empty,
            log_probs=empty,
            rewards=empty,
            terminated=np.empty((0, count), np.bool_),
            bootstrap_mask=np.empty((0, count), np.bool_),
            bootstrap_observations=empty,
            invocation_ids=tuple(wire.field_text(one["invocation_id"]) for one in trajectories),
            slots=tuple(int(one["slot"]) for one in trajectories),
            clip_rewards=clip_rewards,
        )

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Asks the instances for their parts of the update."""
        assert isinstance(batch, KeptBatch), "as `assemble` returns it"
        shares = self._instances.shares(batch.slots, batch.lengths.tolist())
        self._ask(_Pending(batch, float(progress), shares, 0, set(), []))

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the update if it has ended. If an instance was lost, asks all of them again.

        Raises:
            RunError: The instances failed `ATTEMPTS` times, or the store cannot be read.
        """
        if (pending := self._pending) is None:
            return []
        for outcome in self._remote.fleet.wait(min(timeout_s, _PATIENCE_S)):
            if outcome.invocation_id in pending.awaited:
                pending.awaited.remove(outcome.invocation_id)
                self._note(pending, outcome)
        if (
            pending.problem
            and pending.awaited
            and time.monotonic() > pending.lost_at_s + _PATIENCE_S
        ):
            self._remote.fleet.abandon(sorted(pending.awaited))
        if not pending.awaited:
            self._ended(pending)
        return super().poll(timeout_s)

    def get_state(self) -> State:
        """Returns the learner's state, and the name of the reduction."""
        state = super().get_state()
        return State(state.arrays, {**state.values, "reduction": self._reduction})

    def set_state(self, state: State) -> None:
        """Continues from a state, which the instances find in the store."""
        values = dict(state.values)
        self._reduction = values.pop("reduction", self._instances.reduction)
        super().set_state(State(state.arrays, values))
        self._pending = None
        self._fill_store()

    def close(self) -> None:
        """Gives up the current update, and empties the store."""
        pending, self._pending = self._pending, None
        self._give_up([] if pending is None else sorted(pending.awaited))
        for generation in range(1, self._generation + 1):
            remove_directory(self._meeting, f"{generation}")

    def _fill_store(self) -> None:
        """Puts the learner's specification and state into the store, and removes everything else."""
        self._delete(self._names)
        self._put(learner_name(self._token), encode_learner(self._spec, self._remote.device))
        self._put(
            state_name(self._token, self.policy_version), encode_state(self.learner.get_state())
        )

    def _ask(self, pending: _Pending) -> None:
        """Starts the parts of an update."""
        self._pending, batch, token, version = (
            pending,
            pending.batch,
            self._token,
            self.policy_version,
        )
        fleet = self._instances
        met = [(one, fleet.processes.get(one)) for one in pending.shares]
        for one, process in met:
            if process is not None and self._seen.setdefault(one, process) != process:
                self._seen[one] = process
                self._remote.events.append("instance_replaced", instance=one)
        if met != self._met:
            self._generation, self._met = self._generation + 1, met
        devices = [fleet.places[one].device for one in pending.shares]
        reduction = self._reduction
        if reduction not in (
            "auto",
            "paper",
            *applicable(devices, is_cuda=self._remote.device != "cpu"),
        ):
            # The configured reduction suits the whole layout, but not these instances alone.
            reduction = "har"
        invocations = []
        for rank, (instance, columns) in enumerate(pending.shares.items()):
            invocation_id = f"{token}-train-{version}-{pending.attempt}-{instance}"
            invocations.append(
                Invocation(
                    invocation_id,
                    {
                        "invocation_id": invocation_id,
                        "instance": instance,
                        "store": self._remote.store,
                        "token": token,
                        "policy_version": version,
                        "progress": pending.progress,
                        "clip_rewards": batch.clip_rewards,
                        "slots": [
                            fleet.event_of(batch.invocation_ids[column]) for column in columns
                        ],
                        "columns": columns,
                        "lengths": batch.lengths.tolist(),
                        "group": {
                            "rank": rank,
                            "devices": devices,
                            "name": f"{self._generation}",
                            "port": self._port,
                            "reduction": reduction,
                            # Replace an instance that hangs while there is time to ask again.
                            "timeout_s": self._remote.timeout_s / (ATTEMPTS + 1),
                        },
                    },
                    limit_s=self._remote.timeout_s,
                )
            )
        pending.awaited = {one.invocation_id for one in invocations}
        self._remote.fleet.start(invocations)

    def _note(self, pending: _Pending, outcome: Outcome) -> None:
        if outcome.status != "ok" and not pending.problem:
            pending.lost_at_s = time.monotonic()
            # Members that wait for the group to form would wait in vain.
            call_off(self._meeting, f"{self._generation}")
        if outcome.status == "ok" and outcome.response is not None:
            pending.answers.append(outcome.response)
        elif not pending.problem or outcome.status == "crashed":
            # Most of these errors come from members that missed the lost one.
            pending.problem = outcome.error

    def _ended(self, pending: _Pending) -> None:
        """Takes the next version from the store. If it is missing, asks for it again."""
        problem = pending.problem
        data = self._store.get(result_name(self._token, self.policy_version + 1))
        if data is not None:
            try:
                self._take(pending, data)
                return
            except (WireError, CheckpointError) as error:
                problem = str(error)
                self._store.delete([result_name(self._token, self.policy_version + 1)])
        self._remote.events.append(
            "update_failed",
            policy_version=self.policy_version,
            attempt=pending.attempt,
            error=problem,
        )
        if pending.attempt + 1 == ATTEMPTS:
            raise RunError(
                f"the instances failed {ATTEMPTS} times to make policy version {self.policy_version + 1}; "
                f"the last error: {problem}"
            )
        # Even if all are alive, one has left the group, and the store may have lost something.
        self._met = []
        self._fill_store()
        self._ask(replace(pending, attempt=pending.attempt + 1, answers=[], problem=""))

    def _take(self, pending: _Pending, data: bytes) -> None:
        result = decode_result(data)
        self.learner.set_state(result.state)
        answers = pending.answers
        if pending.problem:
            # The version exists, but a part of the group is gone.
            self._met = []
        # A choice by a part of the instances, or by one alone, does not count for all.
        is_whole = len(pending.shares) == len(self._instances.places)
        if answers and is_whole and self._reduction in ("auto", "paper"):
            self._reduction = answers[0]["reduction"]
            self._remote.events.append("reduction_chosen", reduction=self._reduction)
        shares = {
            name: float(np.mean([one[name] for one in answers])) if answers else 0.0
            for name in ("reduce_s", "reduce_wait_s")
        }
        self.ended.append(
            replace(
                result.update,
                staleness=self.policy_version - 1 - pending.batch.policy_versions,
                aggregation=Together(
                    len(pending.shares),
                    **shares,
                    instance_memory_mib=max((one["memory_mib"] for one in answers), default=0.0),
                ),
            )
        )
        self._delete(self._names - {learner_name(self._token)})
        self._names.add(result_name(self._token, self.policy_version))
        self._instances.forget()
        self._pending = None
