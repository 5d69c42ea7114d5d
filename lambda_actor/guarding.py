"""A process that cleans up: it closes its environments, and nothing that user code has started outlives it.

A simulator often starts programs of its own, in sessions of their own, and some never end them.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CLOSE_S = 5.0
"""Seconds in which a process that is to end should close its environments."""
open_environments: set[Any] = set()
"""The environments of this process that have been made and not closed."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class TimeIsUp(BaseException):
    """A time limit has passed. Not an Exception, because code of the user's may catch those."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupts a block of the main thread that takes longer.

    Raises:
        TimeIsUp: It does.
    """

    def end(_number: int, _frame: object) -> None:
        raise TimeIsUp

    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def closed_in_time(environment: Any) -> Iterator[None]:
    """A block of the main thread, after which an environment is closed; gives up after `CLOSE_S`."""
    try:
        yield
    finally:
        with suppress(TimeIsUp), time_limit(CLOSE_S):
            environment.close()


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Makes the kernel send this signal when the thread that started this process ends. Works inside any C call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def guard() -> None:
    """Returns in a new process; this one waits, and ends all that it starts when it, or this one's parent, has ended.

    This process then ends as the new one did. SIGTERM ends both at once, and the end of this one's parent after
    `CLOSE_S`: the new one should notice it, and close its environments. Must be called before there are threads.
    """
    end_with_parent(signal.SIGHUP)
    # Processes whose parents have ended become children of this one, whatever their session.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    awaited = {signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    guarded = os.fork()
    if not guarded:
        end_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = None
    while code is None:
        number = signal.sigwait(awaited)
        if number == signal.SIGCHLD:
            code = _reap(guarded)
        elif number == signal.SIGHUP:
            signal.setitimer(signal.ITIMER_REAL, CLOSE_S + 1.0)
        else:
            code = -signal.SIGTERM
    with suppress(ChildProcessError):
        while True:
            for child in Path("/proc/thread-self/children").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)
    if code < 0:
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.kill(os.getpid(), -code)
    # The first process of a container ignores such signals.
    os._exit(code if code >= 0 else 128 - code)


@atexit.register
def close_environments() -> None:
    """Closes all environments of this process; ignores errors."""
    for environment in list(open_environments):
        with suppress(Exception, SystemExit):
            environment.close()


def _reap(awaited: int) -> int | None:
    """Waits for children that have ended; returns the exit code of the awaited one, if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == awaited:
                code = os.waitstatus_to_exitcode(ended[1])
    return code
