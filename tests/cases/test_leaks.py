"""Environments that leak: their process is replaced, and the run continues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime import machine
from tests.helpers import events, pendulum_file, rounds, train

ROUNDS = 24


def leaking_file(folder: Path, kind: str) -> Path:
    return pendulum_file(
        folder,
        environment={"id": "tests.cases.simulators:make", "kwargs": {"kind": kind}},
        scaler={"kind": "fixed", "actors_fixed": 2},
        evaluation={"every_rounds": 5, "episodes": 2},
        stop={"max_rounds": ROUNDS},
    )


def test_descriptors_that_run_out_cost_a_new_process_and_not_the_run(tmp_path: Path) -> None:
    ended = train(leaking_file(tmp_path, "Descriptors"), tmp_path / "run")
    assert (ended.returncode, len(rounds(tmp_path / "run"))) == (0, ROUNDS), ended.stdout
    failed = events(tmp_path / "run", "actor_failed")
    assert failed and all("Too many open files" in event["error"] for event in failed)
    assert events(tmp_path / "run", "evaluation_repeated")


def test_a_process_whose_memory_grows_is_replaced_with_its_rate_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 400 * 2**20)
    ended = train(leaking_file(tmp_path, "Memory"), tmp_path / "run")
    assert (ended.returncode, len(rounds(tmp_path / "run"))) == (0, ROUNDS), ended.stdout
    assert not events(tmp_path / "run", "actor_failed")
    reasons = [event["reason"] for event in events(tmp_path / "run", "process_replaced")]
    assert any("its memory grows by" in reason and "per fragment" in reason for reason in reasons)
    assert any("the evaluation's memory grew by" in reason for reason in reasons)
    # Without a replacement, one process would play all of a slot's fragments.
    assert max(int(count) for count in re.findall(r"after (\d+);", " ".join(reasons))) < ROUNDS
    assert "per fragment, to" in ended.stdout
