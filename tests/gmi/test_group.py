"""Sums of instances on simulated devices, with real processes that join, leave and die."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.gmi.group import call_off, reductions
from tests.helpers import PATIENCE_S, ROOT, wait_for

LAYOUTS = ([0, 0, 1, 1], [0, 0, 0, 1], [0], [0, 0], [0, 1], [1, 0, 2, 0, 2, 1])
"""Devices of one to six instances. In the last layout, no device has consecutive ranks."""
ELEMENTS = 1024
"""Elements per page; longer tensors are summed in pieces."""
NEVER_S = 600.0
"""A time-out that no test reaches."""


class Pool:
    """Processes that serve as members of one group after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: list[subprocess.Popen] = []
        self._heard: defaultdict[int, bytes] = defaultdict(bytes)
        self._numbers = itertools.count()

    def tell(self, rank: int, order: str, /, **options: Any) -> None:
        while len(self.members) <= rank:
            self.members.append(self._started())
        self.members[rank].stdin.write(json.dumps([order, options]).encode() + b"\n")

    def hear(self, rank: int) -> dict[str, Any]:
        """Returns a member's answer: its value, its error, or that it died."""
        member = self.members[rank]
        while b"\n" not in self._heard[rank]:
            assert select.select([member.stdout], [], [], PATIENCE_S)[0], f"{rank} says nothing"
            if not (heard := os.read(member.stdout.fileno(), 2**16)):
                with member:
                    self.members[rank] = self._started()
                return {"died": member.returncode}
            self._heard[rank] += heard
        line, _, self._heard[rank] = self._heard[rank].partition(b"\n")
        return json.loads(line)

    def ask(self, ranks: Sequence[int], order: str, **options: Any) -> list[Any]:
        for rank in ranks:
            self.tell(rank, order, **options)
        answers = [self.hear(rank) for rank in ranks]
        assert all("value" in answer for answer in answers), answers
        return [answer["value"] for answer in answers]

    def send_to_join(
        self,
        devices: Sequence[int],
        reduction: str,
        *,
        timeout_s: float = NEVER_S,
        own: dict[int, dict[str, Any]] | None = None,
    ) -> None:
        """Has members join a new group. ``own`` are options of some."""
        self.path = str(self.folder / f"{next(self._numbers)}")
        for rank in range(len(devices)):
            options = {"rank": rank, "devices": devices, "path": self.path, "elements": ELEMENTS}
            options |= {"reduction": reduction, "timeout_s": timeout_s}
            self.tell(rank, "join", **options | (own or {}).get(rank, {}))

    def join(self, devices: Sequence[int], reduction: str, **options: Any) -> None:
        """Has members join a new group."""
        self.send_to_join(devices, reduction, **options)
        answers = [self.hear(rank) for rank in range(len(devices))]
        assert all("value" in answer for answer in answers), answers

    def close(self) -> None:
        for member in self.members:
            with member:
                member.kill()

    def _started(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.gmi.member"],
            cwd=ROOT,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(tmp_path_factory.mktemp("g"))
    yield made
    made.close()


SHAPES = [[("float32", [length])] for length in (0, 1, 3, 7, ELEMENTS, 4099, 300_000)] + [
    [("float64", [1025])],
    [("float32", [3, 5]), ("float64", []), ("float32", []), ("float64", [2, 0]), ("float32", [17])],
]
"""Sizes: fewer numbers than ranks, none, more than a part of the memory, more than a socket's buffer."""
CASES = [(devices, reduction) for devices in LAYOUTS for reduction in reductions(devices)]


def test_the_paper_chooses_by_layout() -> None:
    """Algorithm 1: the first that is allowed."""
    for devices in ([0], [3, 3, 3, 3]):
        assert reductions(devices) == ("mpr",)
    for devices in ([0, 1], [0, 0, 1, 1], [0, 1, 2, 0, 1, 2, 0, 1, 2]):
        assert reductions(devices) == ("mrr", "har", "mpr")
    for devices in ([0, 0, 0, 1, 1, 1], [0, 0, 0, 1], [0, 1, 2, 3, 3]):
        assert reductions(devices) == ("har", "mpr")


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else "".join(map(str, value))


@pytest.mark.parametrize(("devices", "reduction"), CASES, ids=name_of)
def test_the_sum_is_that_of_all_in_all_with_the_same_bits_each_time(
    pool: Pool, devices: list[int], reduction: str
) -> None:
    ranks, seen = range(len(devices)), []
    for _ in range(2):
        pool.join(devices, reduction)
        for seed, shapes in enumerate(SHAPES):
            answers = pool.ask(ranks, "sum", shapes=shapes, seed=seed)
            assert max(answer["error"] for answer in answers) < 1e-5
            assert all(answer["bits"] == answers[0]["bits"] for answer in answers)
            assert reduction != "mpr" or answers[0]["is_in_order"], "the order of ranks"
            seen.append(answers[0]["bits"])
        for waited_s, reduce_s in (answer["seconds"] for answer in answers):
            assert len(devices) == 1 or 0.0 < waited_s < reduce_s
        pool.ask(ranks, "leave")
    assert seen[: len(SHAPES)] == seen[len(SHAPES) :]


# Deaths


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("reduction", ["mpr", "mrr", "har"])
def test_a_member_killed_anywhere_in_a_sum_is_noticed_by_all(
    pool: Pool, reduction: str, victim: int
) -> None:
    """A member that waits for its time-out does not answer in time."""
    others = [rank for rank in range(4) if rank != victim]
    for die_at in itertools.count():
        pool.join([0, 0, 1, 1], reduction)
        for rank in range(4):
            last = die_at if rank == victim else -1
            pool.tell(rank, "sum", shapes=[("float32", [500])], die_at=last)
        answer = pool.hear(victim)
        if "value" in answer:
            assert die_at > 0
            break
        assert answer == {"died": -signal.SIGKILL}
        # Before the last steps, some members may already have all their data. They notice in the next sum.
        unaware = [rank for rank in others if "value" in pool.hear(rank)]
        for rank in unaware:
            pool.tell(rank, "sum", shapes=[("float32", [1])])
        for rank in unaware:
            assert f"member {rank} of 4 cannot sum in its group" in pool.hear(rank)["error"]
        for rank in others:
            pool.tell(rank, "sum", shapes=[("float32", [1])])
            assert "it has ended" in pool.hear(rank)["error"]
        pool.ask(others, "leave")
    for rank in others:
        pool.hear(rank)
    pool.ask(range(4), "leave")


@pytest.mark.parametrize("reduction", ["mpr", "mrr", "har"])
def test_a_member_killed_anywhere_in_joining_holds_nobody_up(pool: Pool, reduction: str) -> None:
    """The loop sees that its child has ended, and calls the group off."""
    for victim in (0, 3):
        others = [rank for rank in range(4) if rank != victim]
        for die_at in itertools.count():
            pool.send_to_join([0, 0, 1, 1], reduction, own={victim: {"die_at": die_at}})
            answer = pool.hear(victim)
            if "value" in answer:
                assert die_at > 0
                break
            call_off(pool.path)
            joined = [rank for rank in others if "value" in pool.hear(rank)]
            for rank in joined:
                pool.tell(rank, "sum", shapes=[("float32", [1])])
            assert all("cannot sum" in pool.hear(rank)["error"] for rank in joined)
        for rank in others:
            pool.hear(rank)
        pool.ask(range(4), "leave")


def test_a_process_that_replaces_a_member_cannot_take_its_place(pool: Pool) -> None:
    pool.join([0, 1], "mrr")
    os.kill(pool.members[1].pid, signal.SIGKILL)
    assert pool.hear(1) == {"died": -signal.SIGKILL}
    options = {"rank": 1, "devices": [0, 1], "path": pool.path, "elements": 1}
    pool.tell(1, "join", reduction="mrr", timeout_s=NEVER_S, **options)
    assert "another process was this member" in pool.hear(1)["error"]
    pool.tell(0, "sum", shapes=[("float32", [1])])
    assert "error" in pool.hear(0)
    pool.ask([0], "leave")


@pytest.mark.parametrize("reduction", ["mpr", "mrr"])
def test_a_member_that_hangs_is_not_awaited_for_ever(pool: Pool, reduction: str) -> None:
    pool.join([0, 1], reduction, own={0: {"timeout_s": 0.2}})
    pool.tell(0, "sum", shapes=[("float32", [10])])
    assert "cannot sum in its group" in pool.hear(0)["error"]
    pool.tell(1, "sum", shapes=[("float32", [10])])
    assert "cannot sum in its group" in pool.hear(1)["error"]
    pool.ask([0, 1], "leave")


@pytest.mark.parametrize("reduction", ["mpr", "mrr", "har"])
def test_generations_leave_nothing_behind(tmp_path: Path, reduction: str) -> None:
    with closing(Pool(tmp_path)) as pool:
        for generation in range(6):
            pool.join([0, 0, 1, 1], reduction)
            pool.ask(range(4), "sum", shapes=[("float32", [10])])
            if generation == 3:
                os.kill(pool.members[3].pid, signal.SIGKILL)
                assert pool.hear(3) == {"died": -signal.SIGKILL}
            pool.ask(range(4 - (generation == 3)), "leave")
            if generation == 0:
                before = pool.ask(range(3), "holds")
        # Threads may still be ending.
        wait_for(
            lambda: np.all(np.array(pool.ask(range(3), "holds")) <= before),
            "all that a group has to be closed",
        )
