"""The updater whose learner is a function: each update is one invocation, and the loop mirrors the newest version.

    1. the batch is put into the store, and the state if no function has made it;
    2. the worst case of an invocation is reserved, and the function is invoked;
    3. it loads the state unless it has kept it, trains, and puts state and report into the store;
    4. the result is taken from the store, whatever the invocation answered.

The first result in the store makes the next version, and the loop looks there before it pays for another try. So an
invocation that is repeated, slow or dead costs its own bill, and never trains twice. A result that does not fit the
update is removed and counts as a failed invocation.

Measured with experiments/hopper.yaml (two threads, seven interleaved pairs, two shared cores): with 8 actors an update
takes 1.13 times the CPU time of one in place, and with 32 actors 1.03 times. A batch has 0.15 and 0.61 MB, a result
1.86 and 2.42 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lambda_actor.errors import WireError
from runtime.errors import BudgetError, CheckpointError, NotFiniteError, RunError
from runtime.learner import LearnerSpec
from runtime.learner.remote.messages import Result, decode_result, encode_batch, encode_state
from runtime.learner.remote.places import open_store
from runtime.learner.remote.results import check_result
from runtime.learner.remote.store import StoreError, batch_name, result_name, state_name
from runtime.learner.spec import spec_values
from runtime.learner.updater import InPlaceUpdater
from runtime.ports.fleet import Fleet, Invocation, Outcome
from runtime.ports.learning import Batch, Learner, State, Update
from runtime.ports.money import LEARNER, CostMeter, Work
from runtime.ports.run import EventSink

ATTEMPTS = 3
"""Maximum invocations for one update. After that the run ends."""


@dataclass(frozen=True)
class Remote:
    """Everything that an updater with a remote learner needs.

    Attributes:
        spec: The learner's specification.
        fleet: Invokes the learner function.
        store: Place of the store, in the form of `open_store`.
        token: Prefix of all names that this session puts there; letters, digits and dashes. It changes when the learner
            is set back, so objects of a crashed session are never used.
        meter: Reserves and bills the invocations.
        save_ledger: Writes the meter's state to disk.
        events: Records failures.
        instances: Settings of `runtime.gmi`, if instances train.
        device: Their device, ``cpu`` or ``cuda``.
        timeout_s: Maximum seconds of an update.
    """

    spec: LearnerSpec
    fleet: Fleet
    store: str
    token: str
    meter: CostMeter
    save_ledger: Callable[[], None]
    events: EventSink
    instances: Any = None
    device: str = "cpu"
    timeout_s: float = math.inf


class RemoteUpdater(InPlaceUpdater):
    """The base of updaters that invoke functions: uses the store and settles invocations."""

    def __init__(self, learner: Learner, remote: Remote) -> None:
        """Takes over a learner at the newest version, made from ``remote.spec``."""
        super().__init__(learner)
        self._remote, self._store = remote, open_store(remote.store)
        self._spec = spec_values(remote.spec)
        self._restarts = 0
        self._names: set[str] = set()

    def set_state(self, state: State) -> None:
        """Continues from a state. Objects in the store then belong to another training."""
        super().set_state(state)
        self._restarts += 1

    @property
    def _token(self) -> str:
        return f"{self._remote.token}-{self._restarts}"

    def _put(self, name: str, data: bytes) -> None:
        self._names.add(name)
        # An earlier try whose answer was lost may have put it there.
        if not self._store.put(name, data) and self._store.get(name) != data:
            raise StoreError(f"{name} is in the store before it was put there")

    def _delete(self, names: Iterable[str]) -> None:
        gone = sorted(names)
        self._store.delete(gone)
        self._names.difference_update(gone)

    def _give_up(self, invocation_ids: Sequence[str]) -> None:
        """Gives up these invocations, and empties the store."""
        if invocation_ids:
            self._remote.fleet.abandon(invocation_ids)
        # Remaining objects have names that no other session asks for.
        with suppress(StoreError):
            self._delete(self._names)


@dataclass(frozen=True)
class _Pending:
    """An update that is under way."""

    policy_version: int
    progress: float
    batch: Batch
    attempt: int = 0


class FunctionUpdater(RemoteUpdater):
    """Lets a function train on each batch; see `runtime.ports.learning.Updater`.

    Attributes:
        learner: The mirror: it holds the newest version, and never trains.
    """

    def __init__(self, learner: Learner, remote: Remote) -> None:
        """Takes over a mirror."""
        super().__init__(learner, remote)
        self._has_state = False
        self._pending: _Pending | None = None

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Invokes the function for the next version.

        Raises:
            BudgetError: The budget does not hold the invocation.
            RunError: The store cannot be written.
        """
        version = self.policy_version
        if not self._has_state:
            self._put(state_name(self._token, version), encode_state(self.get_state()))
            self._has_state = True
        self._put(batch_name(self._token, version), encode_batch(batch))
        self._pending = _Pending(version, float(progress), batch)
        self._invoke(self._pending)

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the update if it has ended. Repeats a failed invocation.

        Raises:
            BudgetError: The budget does not hold another invocation.
            NotFiniteError: The last of `ATTEMPTS` results is not finite.
            RunError: `ATTEMPTS` invocations have failed, or the store cannot be read.
        """
        if self._pending is None:
            return []
        for outcome in self._remote.fleet.wait(timeout_s):
            if self._pending is not None and outcome.invocation_id == self._id(self._pending):
                self._ended(self._pending, outcome)
        return super().poll(timeout_s)

    def set_state(self, state: State) -> None:
        """Sets the mirror's state. Objects in the store then belong to another training."""
        super().set_state(state)
        self._pending, self._has_state = None, False

    def close(self) -> None:
        """Gives up the current update, and empties the store."""
        pending, self._pending = self._pending, None
        self._give_up([] if pending is None else [self._id(pending)])

    def _invoke(self, pending: _Pending) -> None:
        remote = self._remote
        if not remote.meter.reserve([_work(pending)]):
            raise BudgetError(
                f"the budget does not hold invocation {pending.attempt + 1} of the learner function for "
                f"policy version {pending.policy_version + 1}"
            )
        remote.save_ledger()
        remote.fleet.start(
            [
                Invocation(
                    self._id(pending),
                    {
                        "invocation_id": self._id(pending),
                        "attempt": pending.attempt,
                        "store": remote.store,
                        "token": self._token,
                        "policy_version": pending.policy_version,
                        "progress": pending.progress,
                        "learner": self._spec,
                    },
                )
            ]
        )

    def _ended(self, pending: _Pending, outcome: Outcome) -> None:
        """Settles an invocation. Takes a valid result from the store, whatever the invocation answered."""
        self._remote.meter.settle(_work(pending), outcome)
        name = result_name(self._token, pending.policy_version + 1)
        data = self._store.get(name)
        problem: Exception = RunError(outcome.error or "it left no result")
        if data is not None:
            try:
                self._take(pending, decode_result(data))
            except (WireError, ValueError, NotFiniteError, CheckpointError) as error:
                problem = error
                # Otherwise the next invocation would find it.
                self._store.delete([name])
            else:
                # Keep this result, from which the next update starts.
                self._delete(self._names)
                self._names.add(name)
                return
        self._remote.events.append(
            "learner_failed",
            policy_version=pending.policy_version,
            attempt=pending.attempt,
            status=outcome.status,
            error=str(problem),
        )
        if pending.attempt + 1 == ATTEMPTS:
            if isinstance(problem, NotFiniteError):
                raise problem
            raise RunError(
                f"the learner function failed {ATTEMPTS} times to make policy version "
                f"{pending.policy_version + 1}; the last error: {problem}"
            ) from problem
        self._pending = replace(pending, attempt=pending.attempt + 1)
        self._invoke(self._pending)

    def _take(self, pending: _Pending, result: Result) -> None:
        before = self.learner.get_state()
        check_result(result, before=before, batch=pending.batch, spaces=self._remote.spec.spaces)
        try:
            self.learner.set_state(result.state)
        except CheckpointError:
            self.learner.set_state(before)
            raise
        self.ended.append(result.update)
        self._pending = None

    def _id(self, pending: _Pending) -> str:
        return f"{self._token}-update-{pending.policy_version}-{pending.attempt}"


def _work(pending: _Pending) -> Work:
    return Work(LEARNER, 0, pending.attempt)
