"""Descriptions of a process that ended. The tests of its users cover its start and end."""

from __future__ import annotations

import signal

import pytest

from runtime.fleet.processes import how_it_ended


@pytest.mark.parametrize(
    ("exit_code", "told"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-signal.SIGKILL, "SIGKILL"),
        (-(signal.SIGRTMIN + 1), "signal 35"),
    ],
)
def test_how_it_ended_is_told(exit_code: int, told: str) -> None:
    assert how_it_ended(exit_code) == told
