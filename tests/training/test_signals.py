"""Signals end a run between its steps, never inside one, and only once."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from runtime.errors import BudgetError
from runtime.training.signals import Interrupted, ShieldedFleet, Signals
from tests.helpers import PATIENCE_S, ROOT


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(number: signal.Signals) -> None:
    with Signals(), pytest.raises(Interrupted) as caught:
        send(number)
        time.sleep(PATIENCE_S)
    assert caught.value.signal_number == number


def test_a_shielded_block_is_done_before_the_signal_takes_effect() -> None:
    done = []
    with Signals() as signals, pytest.raises(Interrupted), signals.shield():
        with signals.shield():
            send(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_a_second_signal_does_not_cut_the_cleaning_up() -> None:
    with Signals():
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)
            time.sleep(PATIENCE_S)
        send(signal.SIGTERM)
        send(signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    ]
    with Signals() as signals, signals.time_limit(PATIENCE_S, "nothing"):
        pass
    after = [
        signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    ]
    assert after == before


@pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0])
def test_a_time_limit_ends_what_takes_longer(seconds: float) -> None:
    with (
        Signals() as signals,
        pytest.raises(BudgetError, match="the nap took longer"),
        signals.time_limit(seconds, "the nap"),
    ):
        time.sleep(PATIENCE_S)


def test_a_time_limit_holds_though_an_environment_passes_over_exceptions() -> None:
    with (
        Signals() as signals,
        pytest.raises(BudgetError, match="the nap took longer"),
        signals.time_limit(0.02, "the nap"),
    ):
        for _ in range(2):
            with contextlib.suppress(Exception):
                time.sleep(PATIENCE_S)


def test_a_time_limit_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.training.signals._LIMIT_AGAIN_S", 0.02)
    with (
        Signals() as signals,
        pytest.raises(BudgetError, match="the nap took longer"),
        signals.time_limit(0.02, "the nap"),
    ):
        for _ in range(3):
            with contextlib.suppress(BaseException):
                time.sleep(PATIENCE_S)
        time.sleep(PATIENCE_S)


STUBBORN = """
import time
from runtime.training import signals
signals._LIMIT_AGAIN_S = 0.02
with signals.Signals() as one, one.time_limit(0.02, "the nap"):
    while True:
        try:
            time.sleep(9000)
        except BaseException:
            pass
"""


def test_what_never_heeds_its_time_limit_ends_with_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, "the nap does not heed its time limit" in done.stderr) == (1, True)


def test_waiting_for_actors_ends_at_a_signal() -> None:
    class Idle:
        concurrency = 1

        def wait(self, timeout_s: float) -> list:
            time.sleep(timeout_s)
            return []

    with Signals() as signals, pytest.raises(Interrupted):
        signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        ShieldedFleet(Idle(), signals).wait(PATIENCE_S)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
