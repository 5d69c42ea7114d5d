"""Dispensers and batchers in processes of their own, some of which are killed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from runtime.gmi.sharing.migrator import Migrator
from tests.gmi.sharing.instances import BATCH_SAMPLES, GAVE_UP, PATIENCE_S, noted, start
from tests.gmi.sharing.samples import plan, sequences
from tests.helpers import is_alive

ENDLESS = 10**9
Process = subprocess.Popen[bytes]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def migrator(stack: ExitStack) -> Migrator:
    return stack.enter_context(closing(Migrator(plan())))


def started(stack: ExitStack, process: Process) -> Process:
    stack.callback(process.wait)
    stack.callback(process.kill)
    if process.stdout:
        stack.callback(process.stdout.close)
    return process


def step_until(migrator: Migrator, is_so: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_s
        migrator.step(0.02)


def ended(*processes: Process) -> Callable[[], bool]:
    return lambda: all(process.poll() is not None for process in processes)


def killed(process: Process) -> None:
    process.kill()
    process.wait()


def test_all_that_is_played_is_trained_on_once(stack: ExitStack, migrator: Migrator, tmp_path: Path) -> None:
    notes = [tmp_path / "0", tmp_path / "1"]
    trainers = [started(stack, start("trainer", migrator.add_trainer(number), notes[number], ENDLESS))
                for number in (0, 1)]
    agents = [started(stack, start("agent", migrator.add_agent(number), 401, PATIENCE_S)) for number in (0, 1)]
    step_until(migrator, ended(*agents))
    step_until(migrator, lambda: migrator.accepted == [401, 401] and not migrator._routes)
    migrator.close()
    assert [process.wait(PATIENCE_S) for process in (*agents, *trainers)] == [0, 0, 0, 0]
    found = [sequences(noted(notes[0]) + noted(notes[1]), number) for number in (0, 1)]
    assert all(len(set(one)) == len(one) and set(one) <= set(range(401)) for one in found)
    assert sum(map(len, found)) > 802 - 2 * BATCH_SAMPLES
    assert min(len(noted(one)) for one in notes) > 0, "both took part"
    assert migrator.samples_lost == 0


def test_an_agent_killed_while_it_writes_costs_its_unfinished_chunk(
    stack: ExitStack, migrator: Migrator, tmp_path: Path
) -> None:
    started(stack, start("trainer", migrator.add_trainer(0), tmp_path / "0", ENDLESS))
    half = started(stack, start("half_agent", migrator.add_agent(0), stdout=subprocess.PIPE))
    step_until(migrator, lambda: migrator.accepted[0] == 4)
    assert half.stdout and half.stdout.readline() == b"stuck\n"
    killed(half)
    agent = started(stack, start("agent", migrator.add_agent(0), 60, PATIENCE_S))
    step_until(migrator, lambda: agent.poll() == 0 and (tmp_path / "0").exists()
               and sequences(noted(tmp_path / "0"), 0) == list(range(60)))


def test_a_trainer_that_is_killed_costs_what_it_had_not_taken(
    stack: ExitStack, migrator: Migrator, tmp_path: Path
) -> None:
    agent = started(stack, start("agent", migrator.add_agent(0), 102, PATIENCE_S))
    ending = started(stack, start("trainer", migrator.add_trainer(0), tmp_path / "0", 1))
    # It has taken one chunk and half of the next, which stays its own; another is on its way to it.
    step_until(migrator, lambda: migrator.accepted[0] == 12 and (tmp_path / "0").exists()
               and sequences(noted(tmp_path / "0"), 0) == list(range(6)))
    assert agent.poll() is None
    killed(ending)
    started(stack, start("trainer", migrator.add_trainer(1), tmp_path / "1", ENDLESS))
    step_until(migrator, lambda: agent.poll() == 0 and (tmp_path / "1").exists()
               and sequences(noted(tmp_path / "1"), 0) == list(range(12, 102)))
    assert migrator.samples_lost == 8


def test_whoever_is_killed_nothing_is_trained_on_twice_or_in_parts(
    stack: ExitStack, migrator: Migrator, tmp_path: Path
) -> None:
    random, lives = np.random.default_rng(3), 0

    def fresh(role: str, number: int) -> Process:
        nonlocal lives
        lives += 1
        return started(stack, start("agent", migrator.add_agent(number), ENDLESS, PATIENCE_S) if role == "agent"
                       else start("trainer", migrator.add_trainer(number), tmp_path / str(lives), ENDLESS))

    living = {(role, number): fresh(role, number) for role in ("agent", "trainer") for number in (0, 1)}
    for _ in range(8):
        goal = sum(migrator.accepted) + int(random.integers(40, 200))
        step_until(migrator, lambda goal=goal: sum(migrator.accepted) > goal)
        role, number = list(living)[int(random.integers(4))]
        killed(living[role, number])
        living[role, number] = fresh(role, number)
    goal = sum(migrator.accepted) + 100
    step_until(migrator, lambda: sum(migrator.accepted) > goal)
    ranges = [one for path in tmp_path.iterdir() for one in noted(path)]
    for number in (0, 1):
        found = sequences(ranges, number)
        assert found and len(set(found)) == len(found) and max(found) < migrator.accepted[number]


def test_an_agent_gives_up_when_nobody_takes(stack: ExitStack, migrator: Migrator) -> None:
    agent = started(stack, start("agent", migrator.add_agent(0), 100, 0.01))
    step_until(migrator, ended(agent))
    assert agent.returncode == GAVE_UP
    assert migrator.accepted[0] == 8, "it has written 11 of the 12 that the memory holds, and has two more"


def test_all_end_when_what_started_them_is_killed(stack: ExitStack, tmp_path: Path) -> None:
    owner = started(stack, start("migrator", None, tmp_path / "0", stdout=subprocess.PIPE))
    assert owner.stdout
    ids = list(map(int, owner.stdout.readline().split()))
    assert len(ids) == 3
    killed(owner)
    give_up_s = time.monotonic() + PATIENCE_S
    while any(map(is_alive, ids)):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
