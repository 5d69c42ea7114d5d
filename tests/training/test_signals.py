"""Signals end a command at any time and a run between its steps, never inside one, and only once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.errors import BudgetError, Interrupted
from runtime.fleet.inline import ShieldedFleet
from runtime.training.signals import Signals
from tests.helpers import PATIENCE_S, ROOT

ENDING = tuple(getattr(signal, f"SIG{name}") for name in "INT TERM HUP USR1 USR2 XCPU".split())


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


SENDING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "IMPORTED":
            os.kill(os.getpid(), NUMBER)
sys.meta_path.insert(0, Finder())
from runtime.__main__ import run
run()
"""


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize("imported", ["runtime.cli.main", "runtime.training.run"])
def test_a_command_that_has_just_begun_says_that_it_was_interrupted(
    tmp_path: Path, imported: str, number: signal.Signals
) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n")
    code = SENDING.replace("IMPORTED", imported).replace("NUMBER", f"{number:d}")
    words = ["train", str(path), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (128 + number, "interrupted\n")


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_interrupts_and_a_second_one_does_not_cut_the_cleaning_up(
    number: signal.Signals,
) -> None:
    before = [signal.getsignal(one) for one in ENDING]
    with Signals():
        with pytest.raises(Interrupted) as caught:
            send(number)
            time.sleep(PATIENCE_S)
        for another in ENDING:
            send(another)
    assert caught.value.exit_code == 128 + number
    assert [signal.getsignal(one) for one in ENDING] == before


def test_a_shielded_block_is_done_before_the_signal_takes_effect() -> None:
    done = []
    with Signals() as signals, pytest.raises(Interrupted), signals.shield():
        with signals.shield():
            send(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


@pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0])
def test_a_time_limit_ends_a_block_that_takes_longer_though_it_suppresses_exceptions(
    seconds: float,
) -> None:
    with (
        Signals() as signals,
        pytest.raises(BudgetError, match="the nap took longer"),
        signals.time_limit(seconds, "the nap"),
        contextlib.suppress(Exception),
    ):
        time.sleep(PATIENCE_S)
    with Signals() as signals, signals.time_limit(PATIENCE_S, "nothing"):
        pass
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_waiting_for_actors_ends_at_a_signal() -> None:
    class Idle:
        concurrency = 1

        def wait(self, timeout_s: float) -> list:
            send(signal.SIGINT)
            time.sleep(timeout_s)
            return []

    with Signals() as signals, pytest.raises(Interrupted):
        ShieldedFleet(Idle(), signals.shield).wait(PATIENCE_S)
