"""Writes a deployed learner's costs, reservations and heartbeat to the ledger, and looks whether the guard watches."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping

from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.log import LOG
from runtime.aws.ledger import (
    FINISHED,
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
)
from runtime.errors import GuardError
from runtime.times import HEARTBEAT_S

START_GRACE_S = 900.0
"""Time from a learner's start to its first promise, for downloads and loading libraries."""
GUARD_SILENT_S = 1800.0
"""Seconds since the guard's last check after which a learner does not start."""
_POLL_S = 0.25


class Heartbeat:
    """Writes each promise, and otherwise every `HEARTBEAT_S` seconds, from its own thread.

    Each promise has a time by which the next one is due; after that, the thread goes silent. So a hung learner is not
    mistaken for a working one.

    Attributes:
        order_reason: Why the deployment is taken down; empty if it is not.
    """

    def __init__(
        self,
        ledger: Ledger,
        deployment: Deployment,
        *,
        now: Callable[[], float],
        ended: Callable[[], None],
    ) -> None:
        """Prepares the heartbeat; writes nothing yet.

        Args:
            now: Seconds since 1970.
            ended: Called once, from the thread, when the deployment is to be taken down.
        """
        self._ledger = ledger
        self._deployment = deployment
        self._now = now
        self._ended = ended
        self._writer = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._values: dict[str, str | float] = {}
        self._due_s = 0.0
        self._beat_at_s = 0.0
        self._lost: LostRunError | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.order_reason = ""

    def take_over(self) -> Entry:
        """Takes the run over from any earlier learner, and returns the ledger's entry.

        Raises:
            TeardownOrderedError: The deployment is being taken down.
            LedgerError: The ledger cannot be written.
        """
        self._due_s = self._now() + START_GRACE_S
        return self._ledger.take_over(
            self._deployment.key,
            stack=self._deployment.stack,
            writer=self._writer,
            instance_id=self._deployment.instance_id,
            now_s=self._now(),
        )

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)
        self._thread.start()

    def check_owner(self) -> None:
        """Checks that no other learner has taken the run over.

        Raises:
            LostRunError: One has.
            LedgerError: The ledger cannot be read.
        """
        entry = self._ledger.get(self._deployment.key)
        if entry is None or entry.writer != self._writer:
            raise LostRunError(f"another learner or pool continues {self._deployment.key}")

    def promise(
        self,
        figures: Mapping[str, str | float],
        *,
        due_s: float | None = None,
        is_written: bool = True,
    ) -> None:
        """Sets the figures that hold from now on.

        Args:
            figures: Attributes of `runtime.aws.ledger.Entry`.
            due_s: When the next call is due, seconds since 1970; None = as before.
            is_written: Whether to return only when the ledger has them.

        Raises:
            LostRunError: Another learner continues the run.
            LedgerError: The ledger cannot be written.
        """
        if self._lost is not None:
            raise self._lost
        with self._lock:
            self._values.update(figures)
            self._due_s = self._due_s if due_s is None else due_s
        if is_written:
            self.write()

    def trains(self) -> None:
        """Allows the first round to begin; raises like `promise`."""
        self.promise({"state": TRAINING})

    def pauses(self) -> None:
        """Reports, if possible, that this learner was interrupted and another one will come."""
        try:
            self._ledger.record(
                self._deployment.key,
                writer=self._writer,
                state=STARTING,
                heartbeat_at_s=self._now(),
            )
        except LedgerError as error:
            LOG.warning("the guard was not told of the interruption: %s", error)

    def finishes(self, reason: str) -> None:
        """Reports that nothing is left to do, unless another process has taken the run over; raises like `promise`."""
        self.promise({"state": FINISHED, "reason": reason})

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_on(self) -> None:
        while not self._closing.wait(_POLL_S):
            if not self._beat_at_s + HEARTBEAT_S <= self._now() <= self._due_s:
                continue
            try:
                self.write()
            except LostRunError as error:
                self._lost = error
                return
            except LedgerError as error:
                # The next one may get through; if none does, the guard assumes the worst.
                LOG.warning("heartbeat: %s", error)
                self._beat_at_s = self._now()

    def write(self) -> None:
        """Writes what holds now; raises like `promise`."""
        with self._lock:
            now_s = self._now()
            key = self._deployment.key
            try:
                entry: Entry | None = self._ledger.record(
                    key, writer=self._writer, heartbeat_at_s=now_s, **self._values
                )
            except LostRunError:
                # Also if the guard has closed the account of a deployment that is gone.
                entry = self._ledger.get(key)
                if entry is None or entry.order_for(self._deployment.stack) is None:
                    raise
            self._beat_at_s = now_s
        order = entry.order_for(self._deployment.stack) if entry else None
        if order is not None and not self.order_reason:
            self.order_reason = order.reason
            self._ended()


def check_guard(ledger: Ledger, now_s: float) -> None:
    """Checks that the guard has looked recently.

    Args:
        ledger: Where the guard records that.
        now_s: Seconds since 1970.

    Raises:
        GuardError: It has not.
    """
    looked_at_s = ledger.last_tick_s()
    if looked_at_s is None or now_s - looked_at_s > GUARD_SILENT_S:
        since = (
            "never looked"
            if looked_at_s is None
            else f"not looked for {(now_s - looked_at_s) / 60:.0f} minutes"
        )
        raise GuardError(
            f"the guard has {since}: nothing would end this deployment by itself. See the alarms and the "
            "log of the stack NitroGuard"
        )
