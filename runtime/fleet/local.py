"""The local fleet: warm processes on this machine that run the same handler as Lambda.

Each process has a thread here that sends it work and waits for its answers. A process that dies, hangs or raises only
costs the invocation that it had. It is replaced, and the outcome says what happened: what its environment has leaked
ends with it. So does one whose memory grows, before there is none left. The processes end with this one.

A process may serve several invocations at once. If it dies or hangs, the culprit is unknown, so each invocation is
served once more, alone.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lambda_actor.guarding import CLOSE_S
from runtime import machine
from runtime.errors import FleetError, RunError
from runtime.fleet import ACTOR_VARIABLES, FleetSetup
from runtime.fleet.failures import CACHE_ERRORS
from runtime.fleet.interfaces import Invocation
from runtime.fleet.processes import Child, how_it_ended
from runtime.money.model import vcpu_share
from runtime.money.work import Outcome
from runtime.records.files import open_to_write

_START_TIMEOUT_S = 120.0
_RESTART_PAUSE_S = 0.5
_LOOK_S = 1.0
"""Seconds between checks of time limits."""


class _Process(Child):
    """One actor process.

    Attributes:
        batch: The invocations that it serves at once, or served last.
        unanswered: Those of them that it has not answered.
        since_s: Since when it starts or serves, and
        limit_s: the seconds that it has for that; infinite while it is idle.
        served: Number of invocations that it has answered.
        each_s: Seconds of an invocation in its last batch.
        init_cpu_s: CPU seconds of its start-up; None until it is ready.
        killed_for: How its invocations end, without their ids and bills, if the fleet killed it.
        first_bytes, memory_bytes: Its memory after the first invocation served warm, and after the last one.
        is_over: Whether it has ended, or ends after its batch; its successor serves what comes.
    """

    def __init__(self, setup: FleetSetup, descriptors: Sequence[int]) -> None:
        with open_to_write(setup.log_path, os.O_APPEND) as log:
            super().__init__(
                "runtime.fleet.actor_process",
                setup.function,
                "together" if setup.together > 1 else "alone",
                variables={**ACTOR_VARIABLES, "PYTHONUNBUFFERED": "1", **setup.credentials},
                output=log,
                descriptors=descriptors,
            )
        self.batch: list[Invocation] = []
        self.unanswered: deque[Invocation] = deque()
        self.since_s = time.monotonic()
        self.limit_s = _START_TIMEOUT_S
        self.served = 0
        self.each_s = 0.0
        self.init_cpu_s: float | None = None
        self.killed_for: Outcome | None = None
        self.first_bytes = 0
        self.memory_bytes = 0
        self.is_over = False

    def give(self, batch: list[Invocation], timeout_s: float) -> None:
        """Makes its thread send it invocations."""
        self.batch = batch
        self.unanswered.extend(batch)
        self.since_s = time.monotonic()
        self.limit_s = batch[0].limit_s or timeout_s

    def give_up(self) -> None:
        """Makes it close its environments and end, or be killed; its invocations are then abandoned."""
        self.killed_for = self.killed_for or Outcome.abandoned("")
        self.hang_up()
        self.limit_s = time.monotonic() - self.since_s + CLOSE_S

    def kill_for(self, end: Outcome) -> None:
        """Kills it; its thread then reports this end for its invocations."""
        self.killed_for = self.killed_for or end
        self.kill()


class LocalFleet:
    """Runs actors in warm processes on this machine; see `runtime.fleet.interfaces.Fleet`.

    Billed are the handler's CPU seconds, divided by the share of a vCPU that the function's memory buys, and the
    environment's waits. An actor that died or was killed is billed for its time limit. Invocations that a
    process serves at once share both. Their number is such that half a time limit should do, and they have one time
    limit together, so that a round's deadline leaves time to serve them again if one hangs. A new process serves two
    alone first: one makes the environment, and one shows how long it takes.
    """

    def __init__(self, setup: FleetSetup, *, descriptors: Sequence[int] = ()) -> None:
        """Starts the actor processes.

        Args:
            setup: With the memory of the function to bill. The actors' output is appended to its log.
            descriptors: Open files that the processes inherit, with the same numbers.

        Raises:
            FleetError: A process cannot be started.
        """
        self.concurrency = setup.concurrency
        self._setup = setup
        self._start_process = partial(_Process, setup, descriptors)
        self._growth_max_bytes = machine.growth_max_bytes(self.concurrency)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._queue: deque[Invocation] = deque()
        self._suspects: set[str] = set()
        self._outcomes: list[Outcome] = []
        self._failure = ""
        self._processes: list[_Process] = []
        try:
            for _ in range(self.concurrency):
                self._processes.append(self._start_process())
        except OSError as error:
            for process in self._processes:
                process.end()
            raise FleetError(f"no actor process can be started: {error}") from error
        self._threads = [threading.Thread(target=self._watch, daemon=True)] + [
            threading.Thread(target=self._run, args=[index], daemon=True)
            for index in range(self.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Queues these actors for the next free processes."""
        with self._changed:
            self._queue.extend(invocations)
            self._assign()

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call; see `runtime.fleet.interfaces.Fleet`.

        Raises:
            FleetError: No actor process can be started.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._outcomes or self._failure, timeout_s)
            if self._failure:
                raise FleetError(f"the local fleet failed: {self._failure}")
            outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Kills running invocations, and drops waiting ones."""
        abandoned = set(invocation_ids)
        with self._changed:
            for invocation in [
                invocation for invocation in self._queue if invocation.invocation_id in abandoned
            ]:
                self._queue.remove(invocation)
                self._report(Outcome.never_started(invocation.invocation_id))
            for process in self._processes:
                if ids := abandoned & {
                    invocation.invocation_id for invocation in process.unanswered
                }:
                    # They are not served again.
                    self._suspects |= ids
                    process.give_up()

    def close(self) -> None:
        """Ends all actor processes, which first close their environments; idempotent."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
            for process in self._processes:
                if process.init_cpu_s is None:
                    # It has no environment, and would first import everything.
                    process.kill()
                process.hang_up()
        until_s = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _watch(self) -> None:
        """Kills processes whose time is over; in a thread."""
        is_closing = False
        while not is_closing:
            with self._changed:
                is_closing = self._changed.wait_for(self._closing.is_set, _LOOK_S)
                for process in self._processes:
                    if time.monotonic() - process.since_s > process.limit_s:
                        process.kill_for(Outcome.timed_out("", process.limit_s))

    def _run(self, index: int) -> None:
        """Runs one process, and those that replace it, until the fleet closes; in a thread."""
        try:
            process = self._processes[index]
            while True:
                with suppress(EOFError, OSError):
                    self._serve(process)
                code = process.close()
                with self._changed:
                    process.connection.close()
                    if self._closing.is_set():
                        return
                    how = how_it_ended(code)
                    if code == -signal.SIGKILL:
                        mib = process.memory_bytes / 2**20
                        how += f"; the usual reason is too little memory, of which it had {mib:,.0f} MiB before"
                    self._ended(index, process, f"its process ended with {how}")
                if process.init_cpu_s is None and not process.batch:
                    # It cannot start, and nothing waits: do not spin.
                    time.sleep(_RESTART_PAUSE_S)
                process = self._start_process()
                with self._changed:
                    self._processes[index] = process
                    if self._closing.is_set():
                        process.kill()
        except Exception as failure:
            # For example, no process can be started: report it to the waiting thread.
            with self._changed:
                self._failure = f"{type(failure).__name__}: {failure}"
                self._changed.notify_all()

    def _serve(self, process: _Process) -> None:
        """Lets a process serve what it is given, until it or the fleet ends.

        Raises:
            EOFError, OSError: It has ended.
        """
        connection = process.connection
        message = json.loads(connection.recv_bytes())
        with self._changed:
            if "failed" in message:
                error = f"its process does not start: {message['failed']}"
                process.kill_for(Outcome("", "error", error=error))
                return
            process.init_cpu_s = message["init_cpu_s"]
            process.limit_s = math.inf
            self._assign()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: process.unanswered or process.killed_for or self._closing.is_set()
                )
                if process.killed_for or self._closing.is_set():
                    return
                if process.exit_code is not None:
                    # It ended while it was idle, and its successor serves these.
                    process.is_over = True
                    self._queue.extendleft(reversed(process.unanswered))
                    process.unanswered.clear()
                    return
            events = [invocation.event for invocation in process.batch]
            connection.send_bytes(json.dumps(events).encode())
            for _ in events:
                message = json.loads(connection.recv_bytes())
                with self._changed:
                    self._answered(process, message)
            if process.is_over:
                return

    # With the lock held

    def _answered(self, process: _Process, message: Mapping[str, Any]) -> None:
        process.memory_bytes = message["memory_bytes"]
        growth = ""
        if process.served == 1:
            process.first_bytes = process.memory_bytes
        elif not process.is_over:
            growth = self._growth(process)
        # Instances that miss a lost one raise RunError, and keep their learner.
        has_raised = message["error"] and message["error_type"] not in (
            *CACHE_ERRORS,
            RunError.__name__,
        )
        process.is_over = bool(process.is_over or growth or has_raised)
        share = vcpu_share(self._setup.memory_mib)
        billed_s = message["cpu_s"] / share + (message["waited_s"] or 0.0)
        self._report(
            Outcome(
                process.unanswered.popleft().invocation_id,
                "error" if message["error"] else "ok",
                response=message["response"],
                error=message["error"],
                billed_s=min(billed_s, self._setup.timeout_s),
                init_s=(process.init_cpu_s or 0.0) / share,
                init_cpu_s=process.init_cpu_s or 0.0,
                cpu_s=message["cpu_s"] if process.served and len(process.batch) == 1 else 0.0,
                waited_s=message["waited_s"],
                error_type=message["error_type"],
                growth=growth,
            )
        )
        process.served += 1
        if not process.unanswered:
            process.limit_s = math.inf
            process.each_s = (time.monotonic() - process.since_s) / len(process.batch)
            self._assign()

    def _growth(self, process: _Process) -> str:
        """Says how much a process has grown, if that is too much."""
        grown_bytes = process.memory_bytes - process.first_bytes
        if process.served < 2 or grown_bytes < self._growth_max_bytes:
            return ""
        each_mib = grown_bytes / 2**20 / (process.served - 1)
        return (
            f"its memory grows by {each_mib:.3g} MiB per fragment, to {process.memory_bytes / 2**20:,.0f} MiB after "
            f"{process.served + 1}; the environment, or what it uses, may keep what it no longer needs"
        )

    def _ended(self, index: int, process: _Process, death: str) -> None:
        """Reports what an ended process served.

        If it had several, those not abandoned are served again, each alone; those of a batch once, together. A process
        that dies before it was ready takes a waiting invocation with it. Otherwise an actor that cannot start would be
        started forever.
        """
        process.is_over = True
        end = process.killed_for or Outcome("", "crashed", error=death)
        used_s, ending = 0.0, list(process.unanswered)
        if process.init_cpu_s is None:
            ending = process.batch = self._taken(index, 1)
        elif ending:
            used_s = (time.monotonic() - process.since_s) / len(process.batch)
        for invocation in reversed(ending):
            if len(process.batch) > 1 and invocation.invocation_id not in self._suspects:
                self._suspects.add(invocation.invocation_id)
                self._queue.appendleft(invocation)
                continue
            self._report(
                replace(
                    end,
                    invocation_id=invocation.invocation_id,
                    billed_s=min(used_s, self._setup.timeout_s),
                    init_s=(process.init_cpu_s or 0.0) / vcpu_share(self._setup.memory_mib),
                )
            )

    def _assign(self) -> None:
        """Gives waiting invocations to free processes."""
        # Shares are as if all processes were idle; busy ones will be soon.
        share = math.ceil(len(self._queue) / len(self._processes))
        for index, process in enumerate(self._processes):
            in_time = 1
            if process.served > 1:
                in_time = int(self._setup.timeout_s / 2 / max(process.each_s, 1e-3))
            count = max(1, min(share, in_time, self._setup.together))
            is_busy = process.init_cpu_s is None or process.unanswered
            is_free = not (is_busy or process.killed_for or process.is_over)
            if is_free and (taken := self._taken(index, count)):
                process.give(taken, self._setup.timeout_s)
        self._changed.notify_all()

    def _taken(self, index: int, count: int) -> list[Invocation]:
        """Takes up to this many invocations that a process may serve; one that must be alone comes first."""
        taken = [invocation for invocation in self._queue if invocation.process in (None, index)][
            :count
        ]
        if taken and taken[0].invocation_id in self._suspects:
            del taken[1:]
        for invocation in taken:
            self._queue.remove(invocation)
        return taken

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._changed.notify_all()
