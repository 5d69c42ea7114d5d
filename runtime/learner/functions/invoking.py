"""The base of updaters that invoke functions: it asks for objects of the store, tries again, checks, and settles.

    1. an updater puts what its functions read into the store, and asks for an object (`ObjectRequest`);
    2. the worst case of an invocation is in the ledger before it starts, and is settled when it ends;
    3. after the last invocation of a request, the object is taken from the store, whatever the functions answered;
    4. a missing or unusable object counts as a failure, and is asked for again as often as `ATTEMPTS` allows.

The first object under a name remains. So an invocation that is repeated, slow or dead costs its own bill, and never
trains twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from lambda_actor.errors import WireError
from runtime.errors import CheckpointError, NotFiniteError, RunError
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.learner import LearnerSpec
from runtime.learner.functions import open_store
from runtime.learner.functions.messages import spec_values
from runtime.learner.functions.store import StoreError
from runtime.learner.interfaces import Batch, Learner, Update
from runtime.learner.updaters import Updater
from runtime.money.meter import Meter
from runtime.money.work import Outcome, Work
from runtime.records.observers import EventSink
from runtime.records.state import State

_LOOK_S = 60.0
"""Longest wait for an invocation at a time."""
ATTEMPTS = 3
"""Maximum tries for one policy version. After that the run ends."""


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
    """

    spec: LearnerSpec
    fleet: Fleet
    store: str
    token: str
    meter: Meter
    save_ledger: Callable[[], None]
    events: EventSink


@dataclass
class ObjectRequest:
    """An object that functions are asked to leave in the store.

    Attributes:
        name: The object's name.
        work: The reservation of its invocation; None if invocations are not paid one by one.
        attempt: Number of earlier tries; of a gradient, its number in the update.
        awaited: Ids of the invocations that run.
        error: Error of an invocation that failed.
    """

    name: str
    work: Work | None
    attempt: int
    awaited: set[str] = field(default_factory=set, kw_only=True)
    error: str = field(default="", kw_only=True)


Asked = TypeVar("Asked", bound=ObjectRequest)


class InvokingUpdater(Updater, Generic[Asked], ABC):
    """Lets functions train; its learner mirrors the newest version.

    Attributes:
        ended: Updates that `poll` has not returned yet.
    """

    def __init__(self, learner: Learner, remote: Remote) -> None:
        """Takes over a learner at the newest version, made from ``remote.spec``."""
        super().__init__(learner)
        self._remote = remote
        self._store = open_store(remote.store)
        self._spec = spec_values(remote.spec)
        self._restarts = self._late = 0
        self._names: set[str] = set()
        self._running: dict[str, Asked] = {}
        self.ended: list[Update] = []

    @abstractmethod
    def submit(self, batch: Batch, *, progress: float) -> None:
        """Starts to train on a batch; `poll` returns the update."""

    @abstractmethod
    def _take(self, request: Asked, data: bytes) -> None:
        """Uses a request's object.

        Raises:
            WireError: The object is damaged.
            CheckpointError: It belongs to another learner.
            NotFiniteError: It is not finite.
        """

    def _again(self, request: Asked) -> None:
        """Asks again for the object of a failed request."""
        raise NotImplementedError

    def train(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch; see `Updater`."""
        self.submit(batch, progress=progress)
        return self.awaited()

    def awaited(self) -> Update:
        """Waits for the update under way. The caller limits the time; see `poll` for errors."""
        while not (updates := self.poll(_LOOK_S)):
            pass
        return updates[-1]

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the updates that have ended. Takes arrived objects, and asks again for missing ones.

        Raises:
            BudgetError: The budget does not hold another invocation.
            NotFiniteError: The last of `ATTEMPTS` results is not finite.
            RunError: `ATTEMPTS` tries have failed, or the store cannot be used.
        """
        for outcome in self._remote.fleet.wait(timeout_s) if self._running else ():
            request = self._running.pop(outcome.invocation_id, None)
            if request is None:
                self._late += 1
            else:
                self._ended(request, outcome)
        ended, self.ended = self.ended, []
        return ended

    def set_state(self, state: State) -> None:
        """Continues from a state. Objects in the store then belong to another training."""
        super().set_state(state)
        self._restarts += 1
        self._running.clear()
        self.ended.clear()

    def close(self) -> None:
        """Gives up what runs, and empties the store."""
        if self._running:
            self._remote.fleet.abandon(sorted(self._running))
        self._running.clear()
        # Remaining objects have names that no other session asks for.
        with suppress(StoreError):
            self._delete(self._names)

    @property
    def _token(self) -> str:
        return f"{self._remote.token}-{self._restarts}"

    def _reserve(self, works: list[Work]) -> int:
        """Reserves invocations and writes the ledger; returns how many of them the budget holds."""
        granted = self._remote.meter.reserve(works)
        if granted:
            self._remote.save_ledger()
        return granted

    def _ask(
        self,
        request: Asked,
        events: Mapping[str, Mapping[str, Any]],
        *,
        limit_s: float | None = None,
    ) -> None:
        """Invokes functions for an object.

        Args:
            request: The object.
            events: What each invocation gets besides the store, by its id.
            limit_s: Time limit of an invocation; None = the fleet's.
        """
        self._names.add(request.name)
        request.awaited |= events.keys()
        self._running |= dict.fromkeys(events, request)
        shared = {"store": self._remote.store, "token": self._token}
        self._remote.fleet.start(
            [
                Invocation(name, {"invocation_id": name, **shared, **event}, limit_s=limit_s)
                for name, event in events.items()
            ]
        )

    def _ended(self, request: Asked, outcome: Outcome) -> None:
        """Settles an invocation. After a request's last one, takes its object."""
        if request.work is not None:
            self._remote.meter.settle(request.work, outcome)
        request.awaited.remove(outcome.invocation_id)
        request.error = request.error or outcome.error
        if request.awaited:
            return
        problem: Exception = RunError(request.error or "it left nothing in the store")
        try:
            if (data := self._store.get(request.name)) is not None:
                self._take(request, data)
                return
        except (WireError, CheckpointError, NotFiniteError) as error:
            problem = error
            # Otherwise the next try would find it.
            self._store.delete([request.name])
        self._remote.events.append(
            "learner_failed",
            policy_version=self.policy_version,
            attempt=request.attempt,
            status=outcome.status,
            error=str(problem),
        )
        self._failed(request, problem)

    def _failed(self, request: Asked, problem: Exception) -> None:
        """Asks again, or ends the run."""
        if request.attempt + 1 < ATTEMPTS:
            self._again(request)
            return
        if isinstance(problem, NotFiniteError):
            raise problem
        raise RunError(
            f"{ATTEMPTS} tries to make policy version {self.policy_version + 1} failed; the last error: {problem}"
        ) from problem

    def _put(self, name: str, data: bytes) -> None:
        self._names.add(name)
        # An earlier try whose answer was lost may have put it there.
        if not self._store.put(name, data) and self._store.get(name) != data:
            raise StoreError(f"{name} is in the store before it was put there")

    def _delete(self, names: Iterable[str]) -> None:
        gone = sorted(names)
        self._store.delete(gone)
        self._names.difference_update(gone)


def check_finite(figures: Mapping[str, Any]) -> None:
    """Checks that all numbers are finite; None counts as finite.

    Raises:
        NotFiniteError: One is not.
    """
    for name, figure in figures.items():
        array = np.array([] if figure is None else figure)
        if len(wrong := array[~np.isfinite(array)]):
            raise NotFiniteError(f"{name} is {wrong[0]}")
