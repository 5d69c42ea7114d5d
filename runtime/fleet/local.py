"""The local fleet: warm processes on this machine that run the same handler as Lambda.

A process that dies, hangs or raises only costs the invocation that it had. It is replaced, and the outcome says what
happened. The processes end with this one.

A process may serve several invocations at once. If it dies or hangs, the culprit is unknown, so each invocation is
served once more, alone.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection as connections
from typing import Any

from runtime.errors import FleetError
from runtime.fleet import ACTOR_VARIABLES, FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.fleet.processes import (
    DEATH_PATIENCE_S,
    Child,
    how_it_ended,
)
from runtime.money.model import vcpu_share
from runtime.money.work import Outcome, OutcomeStatus
from runtime.records.files import open_to_write
from runtime.records.layout import LOCK

_START_TIMEOUT_S = 120
_RESTART_PAUSE_S = 0.5
_LENGTH = struct.Struct("!i")
_CHUNK_BYTES = 2**20
LOG_BYTES_MAX = 64 * 2**20
"""Limit for the actors' output in a session; an environment may print without end."""
_LOG_CUT = b"\n[more was printed, and is left out]\n"
LOG_LOOK_S = 1.0
"""Seconds between checks of the log's size while actors play."""


class _Channel:
    """Non-blocking messages to and from an actor process, framed like `multiprocessing.connection`.

    Without a cache, a message holds weights or a trajectory, which exceeds a socket's buffer. A process that stops
    halfway must not hold up the others.
    """

    def __init__(self, connection: connections.Connection) -> None:
        self._connection = connection
        os.set_blocking(connection.fileno(), False)
        self._outgoing, self._incoming = bytearray(), bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def is_sending(self) -> bool:
        """Returns whether part of a message waits to be sent."""
        return bool(self._outgoing)

    def send(self, message: bytes) -> None:
        """Begins to send a message; `flush` continues."""
        self._outgoing += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Sends as much as the socket takes."""
        with suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: os.write(self.fileno(), self._outgoing)]

    def receive(self) -> list[bytes]:
        """Returns the complete messages.

        Raises:
            EOFError: The other end is closed.
            OSError: The connection is broken.
        """
        with suppress(BlockingIOError):
            data = os.read(self.fileno(), _CHUNK_BYTES)
            if not data:
                raise EOFError
            self._incoming += data
        messages = []
        while len(self._incoming) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
            if len(self._incoming) < end:
                break
            messages.append(bytes(self._incoming[_LENGTH.size : end]))
            del self._incoming[:end]
        return messages

    def close(self) -> None:
        self._connection.close()


class _Process:
    """One actor process and its invocations."""

    def __init__(self, setup: FleetSetup, variables: Mapping[str, str]) -> None:
        with open_to_write(setup.log_path, os.O_APPEND) as log:
            self._child = Child(
                "runtime.fleet.actor_process",
                setup.handler,
                "together" if setup.together > 1 else "alone",
                variables=variables,
                output=log,
                descriptors=setup.descriptors,
            )
        self.channel = _Channel(self._child.connection)
        self.is_ready = False
        self.init_cpu_s = 0.0
        self.served = 0
        self.invocations: deque[Invocation] = deque()
        self.together = 1
        self.alone_s = 0.0
        self.since_s = time.monotonic()

    def send(self, invocations: Sequence[Invocation]) -> None:
        """Sends it these, which it answers in order."""
        self.invocations.extend(invocations)
        self.together, self.since_s = len(invocations), time.monotonic()
        self.channel.send(json.dumps([invocation.event for invocation in invocations]).encode())

    def end(self, patience_s: float = 0.0) -> int:
        """Kills it after ``patience_s``, with everything it started, and returns its exit code."""
        code = self._child.end(patience_s)
        self.channel.close()
        return code


class LocalFleet:
    """Runs actors in warm processes on this machine; see `runtime.fleet.interfaces.Fleet`.

    Billed are the handler's CPU seconds, divided by the share of a vCPU that the function's memory buys, and the
    environment's waits. An actor that died or was killed is billed for its time limit. Invocations that a
    process serves at once share both. Their number is such that half a time limit should do, and they have one time
    limit together, so that a round's deadline leaves time to serve them again if one hangs. A new process serves two
    alone first, to learn how long one takes.
    """

    def __init__(self, setup: FleetSetup) -> None:
        """Starts the actor processes.

        Args:
            setup: With the memory of the function to bill. The actors' output is appended to its log.

        Raises:
            FleetError: A process cannot be started.
        """
        self.concurrency, self._timeout_s, self._share = (
            setup.concurrency,
            setup.timeout_s,
            vcpu_share(setup.memory_mib),
        )
        self._setup, self._log_path, self._together = setup, setup.log_path, setup.together
        self._name = setup.process_name
        self._is_batch = setup.is_batch
        self._log_bytes_max = LOG_BYTES_MAX + (
            self._log_path.stat().st_size if self._log_path.exists() else 0
        )
        self._variables = {**ACTOR_VARIABLES, "PYTHONUNBUFFERED": "1", **setup.credentials}
        self._wake_read, self._wake_write = connections.Pipe(duplex=False)
        self._lock = threading.Lock()
        self._queue: deque[Invocation] = deque()
        self._abandoned: set[str] = set()
        self._alone: set[str] = set()
        self._again: set[str] = set()
        self._outcomes: list[Outcome] = []
        self._has_outcomes = threading.Condition(self._lock)
        self._is_closing = False
        self._failure: Exception | None = None
        self._processes: list[_Process] = []
        try:
            for _ in range(self.concurrency):
                self._processes.append(self._spawn())
        except OSError as error:
            self._end_all()
            raise FleetError(f"no {self._name} can be started: {error}") from error
        self._dispatcher = threading.Thread(
            target=self._run_dispatcher, name="local-fleet", daemon=True
        )
        self._dispatcher.start()

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Queues these actors for the next free processes."""
        with self._lock:
            self._queue.extend(invocations)
        self._wake()

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call; see `runtime.fleet.interfaces.Fleet`.

        Raises:
            FleetError: No actor process can be started.
        """
        with self._has_outcomes:
            self._has_outcomes.wait_for(lambda: self._outcomes or self._failure, timeout_s)
            if self._failure is not None:
                raise FleetError(
                    f"the local fleet failed: {type(self._failure).__name__}: {self._failure}"
                )
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Kills running invocations, and drops waiting ones."""
        with self._lock:
            self._abandoned.update(invocation_ids)
        self._wake()

    def close(self) -> None:
        """Ends all actor processes; idempotent."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._wake()
        self._dispatcher.join()
        self._end_all()
        self._cut_log()

    def _end_all(self) -> None:
        for process in self._processes:
            process.end()
        self._wake_read.close()
        self._wake_write.close()

    # The dispatcher's thread

    def _run_dispatcher(self) -> None:
        try:
            self._dispatch()
        except Exception as failure:
            # For example, no process can be started: report it to the waiting thread.
            with self._lock:
                self._failure = failure
                self._has_outcomes.notify_all()

    def _dispatch(self) -> None:
        while not self._is_closing:
            with self._lock:
                self._end_abandoned()
                self._assign()
            ready = self._wait_for_sockets()
            self._cut_log()
            if self._wake_read.fileno() in ready:
                self._wake_read.recv_bytes()
            for index, process in enumerate(self._processes):
                events = ready.get(process.channel.fileno(), 0)
                if events & select.POLLOUT:
                    with suppress(OSError):
                        process.channel.flush()
                if events & ~select.POLLOUT:
                    self._receive(index, process)
                elif self._is_overdue(process):
                    self._overdue(index, process)

    def _wait_for_sockets(self) -> dict[int, int]:
        """Waits until it can receive or send, or an invocation is overdue; returns events by file descriptor."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        for process in self._processes:
            poll.register(
                process.channel,
                select.POLLIN | (select.POLLOUT if process.channel.is_sending else 0),
            )
        left_s = [
            limit_s - (time.monotonic() - process.since_s)
            for process in self._processes
            if (limit_s := self._limit_s(process)) is not None
        ]
        # If all are idle, nothing is printed or due.
        return dict(
            poll.poll(math.ceil(1000 * max(0.01, min(*left_s, LOG_LOOK_S))) if left_s else None)
        )

    def _cut_log(self) -> None:
        with suppress(FileNotFoundError):
            # When a run was killed, its lock says until when it ran; see `runtime.training.backends.this_machine`.
            os.utime(self._log_path.with_name(LOCK))
        with suppress(FileNotFoundError):
            if self._log_path.stat().st_size > self._log_bytes_max + len(_LOG_CUT):
                with open_to_write(self._log_path, os.O_APPEND) as log:
                    log.truncate(self._log_bytes_max)
                    log.write(_LOG_CUT)

    def _assign(self) -> None:
        # Shares are as if all processes were idle; busy ones will be soon.
        share = min(self._together, math.ceil(len(self._queue) / len(self._processes)))
        for index, process in enumerate(self._processes):
            # The first makes the environment, and the second one's seconds may set the bill's rate.
            in_time = (
                int(self._timeout_s / 2 / max(process.alone_s, 1e-3)) if process.served > 1 else 1
            )
            if self._is_batch:
                share = in_time = self._together
            if (
                self._queue
                and process.is_ready
                and not process.invocations
                and (taken := self._taken(index, max(1, min(share, in_time))))
            ):
                # A process that died while idle is noticed next, and its invocations end as crashed.
                with suppress(OSError):
                    process.send(taken)

    def _taken(self, index: int, count: int) -> list[Invocation]:
        """Takes up to this many invocations that a process may serve, those that must be alone first."""
        taken = [one for one in self._queue if one.process in (None, index)][:count]
        if taken and taken[0].invocation_id in self._alone:
            del taken[1:]
            self._alone.remove(taken[0].invocation_id)
        for one in taken:
            self._queue.remove(one)
        return taken

    def _end_abandoned(self) -> None:
        if not self._abandoned:
            return
        for invocation in [i for i in self._queue if i.invocation_id in self._abandoned]:
            self._queue.remove(invocation)
            self._report(
                Outcome(
                    invocation.invocation_id,
                    "abandoned",
                    error="never started before the deadline",
                    was_started=False,
                )
            )
        for index, process in enumerate(self._processes):
            if any(one.invocation_id in self._abandoned for one in process.invocations):
                self._replace(index, process, "abandoned", "still running at the round's deadline")
        self._abandoned.clear()

    def _receive(self, index: int, process: _Process) -> None:
        try:
            messages = process.channel.receive()
        except (EOFError, OSError):
            code = process.end(DEATH_PATIENCE_S)
            with self._lock:
                self._replace(index, process, "crashed", _death(self._name, code))
            return
        with self._lock:
            for message in messages:
                self._take_in(index, process, json.loads(message))

    def _take_in(self, index: int, process: _Process, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            process.is_ready, process.init_cpu_s = True, message["init_cpu_s"]
        elif "failed" in message:
            self._replace(
                index, process, "error", f"the {self._name} does not start: {message['failed']}"
            )
        elif process.invocations:
            self._report(
                Outcome(
                    process.invocations.popleft().invocation_id,
                    "error" if message["error"] else "ok",
                    response=message["response"],
                    error=message["error"],
                    billed_s=min(
                        message["cpu_s"] / self._share + (message["waited_s"] or 0.0),
                        self._timeout_s,
                    ),
                    init_s=process.init_cpu_s / self._share,
                    init_cpu_s=process.init_cpu_s,
                    cpu_s=message["cpu_s"] if process.served and process.together == 1 else 0.0,
                    waited_s=message["waited_s"],
                )
            )
            process.served += 1
            if process.together == 1:
                process.alone_s = time.monotonic() - process.since_s

    def _overdue(self, index: int, process: _Process) -> None:
        reason = (
            f"timed out after {self._limit_s(process) or self._timeout_s:g} s"
            if process.is_ready
            else f"the {self._name} was not ready after {_START_TIMEOUT_S} s"
        )
        with self._lock:
            self._replace(index, process, "timeout", reason)

    def _replace(self, index: int, process: _Process, status: OutcomeStatus, reason: str) -> None:
        """Ends ``process`` and its invocations, and starts a fresh process; the lock is held.

        If it had several, those not abandoned are served again, each alone; those of a batch once, together. A process
        that dies before it was ready takes a waiting invocation with it. Otherwise an actor that cannot start would be
        started forever.
        """
        process.end()
        ending = list(process.invocations) or ([] if process.is_ready else self._taken(index, 1))
        if process.together > 1:
            again = [
                one for one in ending if one.invocation_id not in self._abandoned | self._again
            ]
            (self._again if self._is_batch else self._alone).update(
                one.invocation_id for one in again
            )
            self._queue.extendleft(reversed(again))
            ending = [one for one in ending if one not in again]
        billed_s = (
            (time.monotonic() - process.since_s) / process.together if process.is_ready else 0.0
        )
        for one in ending:
            self._report(
                Outcome(
                    one.invocation_id,
                    status,
                    error=reason,
                    billed_s=min(billed_s, self._timeout_s),
                    init_s=process.init_cpu_s / self._share,
                )
            )
        if not ending and not process.is_ready:
            # Not awaited: do not spin.
            time.sleep(_RESTART_PAUSE_S)
        self._processes[index] = self._spawn()

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._has_outcomes.notify_all()

    def _spawn(self) -> _Process:
        return _Process(self._setup, self._variables)

    def _is_overdue(self, process: _Process) -> bool:
        limit_s = self._limit_s(process)
        return limit_s is not None and time.monotonic() - process.since_s > limit_s

    def _limit_s(self, process: _Process) -> float | None:
        if not process.is_ready:
            return _START_TIMEOUT_S
        return (process.invocations[0].limit_s or self._timeout_s) if process.invocations else None

    def _wake(self) -> None:
        self._wake_write.send_bytes(b"\0")


def _death(name: str, exit_code: int) -> str:
    if exit_code >= 0:
        return f"the {name} exited with code {exit_code}"
    return f"the {name} was killed by {how_it_ended(exit_code)}"
