"""A learner's look at the guard while it trains."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.aws.learner.heartbeat import (
    GUARD_LOOK_S,
    GUARD_SILENT_S,
    Heartbeat,
)
from runtime.aws.learner.log import LOG
from runtime.aws.ledger import LedgerError

NOW_S = 1e9


class TickLedger:
    """Answers each look with the guard's last tick, after which time passes until the next look."""

    def __init__(self, *since_s: float | None) -> None:
        """Each argument is the time since a tick at a look; None if the ledger cannot be read."""
        self.now_s, self._since_s, self.is_read = NOW_S, list(since_s), threading.Event()

    def last_tick_s(self) -> float:
        at_s, self.now_s = self.now_s, self.now_s + GUARD_LOOK_S * bool(self._since_s[1:])
        since_s = self._since_s.pop(0) if self._since_s[1:] else self._since_s[0]
        if not self._since_s[1:]:
            self.is_read.set()
        if since_s is None:
            raise LedgerError("no answer")
        return at_s - since_s


def look(*since_s: float | None) -> Heartbeat:
    """Lets a learner look at the guard that often."""
    ledger: Any = TickLedger(*since_s)
    deployment: Any = SimpleNamespace(key="hopper/first")
    heartbeat = Heartbeat(
        ledger, deployment, now=lambda: ledger.now_s, ended=lambda: pytest.fail("it goes on")
    )
    heartbeat.start("")
    ledger.now_s += GUARD_LOOK_S
    assert ledger.is_read.wait(60)
    heartbeat.close()
    return heartbeat


def test_a_guard_that_falls_silent_is_told_once_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, LOG.name):
        problem = look(
            30.0, GUARD_SILENT_S + 60.0, GUARD_SILENT_S + 660.0, GUARD_SILENT_S + 660.0
        ).guard_problem
    assert problem.startswith(
        "the guard has not looked for 41 minutes: nothing would end this deployment by itself."
    )
    (record,) = caplog.records
    assert record.message.startswith("the guard has not looked for 31 minutes")


def test_one_that_looks_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOG.name):
        assert look(GUARD_SILENT_S + 60.0, 30.0, 30.0).guard_problem == ""
    assert [record.message for record in caplog.records][1:] == ["the guard looks again"]


def test_a_ledger_that_does_not_answer_is_no_silent_guard(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, LOG.name):
        assert look(None, None).guard_problem == ""
    assert caplog.records[0].message == "whether the guard watches is not known: no answer"
