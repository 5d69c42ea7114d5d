"""A rehearsal's printed events and their times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.experiment.loading import experiment_from_tree
from tests.simulators.rehearsal.clock import Clock
from tests.simulators.rehearsal.record import Record, text_of
from tests.simulators.rehearsal.rehearsal import experiment


class SteppingClock(Clock):
    """Each step is ten seconds after the one before."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.now_s = 0.0

    def now(self) -> float:
        self.now_s += 10.0
        return self.now_s


def test_the_clock_of_the_log_never_runs_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(SteppingClock())
    record.tell("stack", "what all share is there")
    record.deployed()
    record.tell("stack", "one is begun")
    record.tell("guard", "looks", usd=0.5)
    assert [event["at_s"] for event in record.events] == [-10.0, 10.0, 20.0]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "--:--",
        "00:10",
        "00:20",
    ]


def test_lines_are_short_and_whole() -> None:
    words = " ".join(f"word-{number}" for number in range(200))
    lines = text_of(
        {"at_s": 3725.0, "who": "report", "usd": 0.125, "what": f"two\n{words}"}
    ).splitlines()
    assert lines[0] == " 62:05  report     $0.1250  two"
    assert max(map(len, lines)) <= 120
    assert " ".join(line[28:] for line in lines[1:]) == words
    assert all(line.startswith(" " * 28) for line in lines[1:])


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"cache": "none", "fleet": "local"},
        *(
            {
                "cache": "none",
                "learner": learner,
                "provisioned": 0,
                "update_s": 100,
                "deadline_s": 60,
            }
            for learner in (
                "function",
                "stellaris, learners: 3, function_timeout_s: 20",
            )
        ),
    ],
)
def test_what_is_rehearsed_can_be_deployed(way: dict[str, Any]) -> None:
    experiment_from_tree(yaml.safe_load(experiment(**way)), source="").resolved(is_deployed=True)
