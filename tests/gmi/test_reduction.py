"""Sums of instances on simulated devices, with real processes that join and leave."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch.distributed import TCPStore

from runtime.errors import ExperimentError, RunError
from runtime.gmi.costs import applicable, ranks_by_device
from runtime.gmi.group import join_group
from runtime.gmi.mesh import Mesh, call_off
from tests.helpers import PATIENCE_S, ROOT

LAYOUTS = ([0, 0, 1, 1], [0, 0, 0, 1], [0], [0, 1], [1, 0, 2, 0, 2, 1])
"""Devices of one to six instances. In the last layout, no device has consecutive ranks."""
ELEMENTS = 1024
"""Elements per page; longer tensors are summed in pieces."""
NEVER_S = 600.0
"""A time-out that no test reaches."""
Order = dict[str, Any]


class Pool:
    """Processes that serve as members of one group after another."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        self.store = TCPStore(
            "127.0.0.1",
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self._members: list[subprocess.Popen] = []
        self._heard: defaultdict[int, bytes] = defaultdict(bytes)
        self._names = map("generation-{}".format, itertools.count())

    def tell(self, ranks: Sequence[int], order: str, **options: Any) -> None:
        while len(self._members) <= max(ranks):
            self._members.append(self._started())
        for rank in ranks:
            self._members[rank].stdin.write(json.dumps([order, options]).encode() + b"\n")

    def hear(self, rank: int) -> Order:
        """Returns a member's answer: its value, its error, or that it died."""
        member = self._members[rank]
        while b"\n" not in self._heard[rank]:
            assert select.select([member.stdout], [], [], PATIENCE_S)[0], (
                f"member {rank} says nothing"
            )
            if not (heard := os.read(member.stdout.fileno(), 2**16)):
                with member:
                    self._members[rank] = self._started()
                return {"died": member.returncode}
            self._heard[rank] += heard
        line, _, self._heard[rank] = self._heard[rank].partition(b"\n")
        return json.loads(line)

    def ask(self, ranks: Sequence[int], order: str, **options: Any) -> list[Any]:
        self.tell(ranks, order, **options)
        answers = [self.hear(rank) for rank in ranks]
        assert all("value" in answer for answer in answers), answers
        return [answer["value"] for answer in answers]

    def join(
        self,
        devices: Sequence[int],
        reduction: str,
        *,
        lags_s: Sequence[float] = (0.0,) * 6,
        over_torch: bool = False,
    ) -> list[str]:
        """Has members join a new group; returns each one's reduction."""
        self.name = next(self._names)
        for rank in range(len(devices)):
            self.tell(
                [rank],
                "join",
                rank=rank,
                devices=devices,
                name=self.name,
                reduction=reduction,
                timeout_s=NEVER_S,
                elements=ELEMENTS,
                lag_s=lags_s[rank],
                over_torch=over_torch,
            )
        answers = [self.hear(rank) for rank in range(len(devices))]
        assert all("value" in answer for answer in answers), answers
        return [answer["value"] for answer in answers]

    def close(self) -> None:
        for member in self._members:
            with member:
                member.kill()

    def _started(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.gmi.member", str(self._port)],
            cwd=ROOT,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


SHAPES = [[("float32", [length])] for length in (0, 1, 3, 7, ELEMENTS, 4099, 300_000)] + [
    [("float64", [1025])],
    [("float32", [3, 5]), ("float64", []), ("float32", []), ("float64", [2, 0]), ("float32", [17])],
]
"""Sizes: fewer numbers than ranks, none, more than a part of the memory, more than a socket's buffer."""
CASES = [(devices, reduction) for devices in LAYOUTS for reduction in applicable(devices)]


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else "".join(map(str, value))


@pytest.mark.parametrize(("devices", "reduction"), CASES, ids=name_of)
def test_the_sum_is_that_of_all_in_all_with_the_same_bits_each_time(
    pool: Pool, devices: list[int], reduction: str
) -> None:
    ranks, seen = range(len(devices)), []
    for _ in range(2):
        assert pool.join(devices, reduction) == [reduction] * len(devices)
        for seed, shapes in enumerate(SHAPES):
            answers = pool.ask(ranks, "sum", shapes=shapes, seed=seed)
            assert max(answer["error"] for answer in answers) < 1e-6
            assert all(answer["bits"] == answers[0]["bits"] for answer in answers)
            seen.append(answers[0]["bits"])
        for reduce_s, waited_s in pool.ask(ranks, "seconds"):
            assert len(devices) == 1 or 0.0 < waited_s < reduce_s
        pool.ask(ranks, "leave")
    assert seen[: len(SHAPES)] == seen[len(SHAPES) :]


@pytest.mark.parametrize("reduction", ["mrr", "har"])
def test_the_librarys_operations_serve_as_rings_too(pool: Pool, reduction: str) -> None:
    """Like GPUs, except for the backend's name."""
    devices = [0, 0, 1, 1]
    pool.join(devices, reduction, over_torch=True)
    answers = pool.ask(range(4), "sum", shapes=[("float32", [5000])])
    assert max(answer["error"] for answer in answers) < 1e-6
    assert len({answer["bits"][0] for answer in answers}) == 1
    pool.ask(range(4), "leave")


# Traffic

LENGTH = 960
BYTES = 4 * LENGTH
"""M, divisible by all numbers of instances here."""


def counts(pool: Pool, devices: list[int], reduction: str) -> list[tuple[int, int, int]]:
    """Returns each rank's messages, bytes sent and bytes received in one sum."""
    pool.join(devices, reduction)
    answers = pool.ask(range(len(devices)), "sum", shapes=[("float32", [LENGTH])])
    pool.ask(range(len(devices)), "leave")
    return [tuple(answer["counts"]) for answer in answers]


@pytest.mark.parametrize("devices", LAYOUTS[:2], ids=name_of)
def test_mpr_moves_what_table_2_says_to_and_from_each(pool: Pool, devices: list[int]) -> None:
    n = len(devices)
    found = counts(pool, devices, "mpr")
    assert found == [(2 * (n - 1), 2 * (n - 1) * BYTES // n, 2 * (n - 1) * BYTES // n)] * n


@pytest.mark.parametrize("devices", [[0, 0, 1, 1], [1, 0, 2, 0, 2, 1]], ids=name_of)
def test_mrr_moves_what_table_2_says_out_of_each_device(pool: Pool, devices: list[int]) -> None:
    """A device sends 2 (g − 1) (t + 1) M / g: t rings, one ring of the ends with t members instead of g, and
    broadcasts.
    """
    groups = ranks_by_device(devices)
    g, t = len(groups), len(groups[0])
    found = counts(pool, devices, "mrr")
    for place, group in enumerate(groups):
        of_rings, of_ends, of_broadcast = (
            2 * (g - 1) * BYTES // g,
            2 * (t - 1) * BYTES // t,
            (g - 1) * BYTES,
        )
        is_end = place < t
        assert [sum(found[rank][i] for rank in group) for i in (0, 1)] == [
            t * 2 * (g - 1) + is_end * (2 * (t - 1) + g - 1),
            t * of_rings + is_end * (of_ends + of_broadcast),
        ]
        if t == g:
            assert t * of_rings + of_ends == 2 * (g - 1) * (t + 1) * BYTES // g, "as the table says"
    assert sum(row[1] for row in found) == sum(row[2] for row in found)


@pytest.mark.parametrize("devices", LAYOUTS[1::3], ids=name_of)
def test_har_moves_what_table_2_says_to_each_leader(pool: Pool, devices: list[int]) -> None:
    groups = ranks_by_device(devices)
    g = len(groups)
    found = counts(pool, devices, "har")
    for leader, *others in groups:
        t = 1 + len(others)
        messages, sent, received = found[leader]
        assert received == 2 * (g - 1) * BYTES // g + 2 * (t - 1) * BYTES // t, "the table's count"
        assert sent == (t - 1) * BYTES // t + 2 * (g - 1) * BYTES // g + (t - 1) * BYTES
        assert messages == (t - 1) + 2 * (g - 1) + (t - 1)
        for other in others:
            assert found[other] == (t, BYTES, (t - 1) * BYTES // t + BYTES)


# Choice


@pytest.mark.parametrize(("lag_s", "is_mpr"), [(3000.0, False), (500.0, True)])
def test_all_choose_the_reduction_that_took_the_least_time_in_sum(
    pool: Pool, lag_s: float, is_mpr: bool
) -> None:
    # MPR appears to take negative time to the first member, and very long to the second.
    chosen = pool.join([0, 0, 1, 1], "auto", lags_s=[-1000.0, lag_s, 0.0, 0.0])
    assert len(set(chosen)) == 1
    assert (chosen[0] == "mpr") == is_mpr
    answers = pool.ask(range(4), "sum", shapes=[("float32", [ELEMENTS])])
    assert max(answer["error"] for answer in answers) < 1e-6
    pool.ask(range(4), "leave")


def test_a_reduction_that_the_layout_does_not_allow_is_refused() -> None:
    with pytest.raises(
        ExperimentError,
        match=r"mrr: .*devices \[0, 0, 0, 1\]; allowed: auto \| paper \| mpr \| har",
    ):
        join_group(
            rank=0,
            devices=[0, 0, 0, 1],
            store=None,
            name="",
            reduction="mrr",
            timeout_s=1.0,
            device="cpu",
            elements=1,
        )


# Deaths


@pytest.mark.parametrize("reduction", ["mpr", "mrr", "har", "flat"])
def test_a_member_killed_anywhere_in_a_sum_is_noticed_by_all(pool: Pool, reduction: str) -> None:
    """A member that waits for its time-out does not answer in time."""
    devices = [0, 0, 1, 1]
    pool.join(devices, reduction)
    transfers = pool.ask(range(4), "transfers", length=500)
    pool.ask(range(4), "leave")
    assert (min(transfers) > 0) == (reduction != "flat")
    for victim in (0, 3):
        places = sorted({0, transfers[victim] // 2, max(0, transfers[victim] - 1)})
        for place in places:
            pool.join(devices, reduction)
            others = [rank for rank in range(4) if rank != victim]
            if transfers[victim]:
                pool.ask([victim], "die_at", transfer=place)
                pool.tell(range(4), "sum", shapes=[("float32", [500])])
            else:
                pool.tell(others, "sum", shapes=[("float32", [500])])
                pool.tell([victim], "die")
            assert pool.hear(victim) == {"died": -9}
            errors = [error for rank in others if (error := pool.hear(rank).get("error"))]
            # Before its last transfer, some members may already have all their data.
            assert len(errors) == 3 or (errors and place > 0 and place == transfers[victim] - 1)
            assert set(errors) == {f"RunError: group {pool.name} lost member {victim} of 4"}
            pool.tell(others, "sum", shapes=[("float32", [1])])
            assert all(pool.name in pool.hear(rank)["error"] for rank in others)
            pool.ask(others, "leave")


def test_a_member_that_hangs_is_not_awaited_for_ever(pool: Pool) -> None:
    for reduction in ("mpr", "mrr"):
        pool.join([0, 1], reduction)
        pool.ask([0], "hurry", timeout_s=0.2)
        pool.tell([0], "sum", shapes=[("float32", [10])])
        assert "no answer for 0.2 s" in pool.hear(0)["error"]
        # For the other member it has left, not died.
        pool.tell([1], "sum", shapes=[("float32", [10])])
        assert "lost member" not in pool.hear(1)["error"]
        pool.ask([0, 1], "leave")


@pytest.mark.parametrize("reduction", ["mpr", "har", "flat"])
def test_generations_leave_nothing_behind(pool: Pool, reduction: str) -> None:
    left, files = [], set(os.listdir(tempfile.gettempdir()))
    for generation in range(6):
        pool.join([0, 0, 1, 1], reduction)
        pool.ask(range(4), "sum", shapes=[("float32", [10])])
        if generation == 3:
            # Ensures that some groups end by a death.
            pool.tell([3], "die")
        pool.tell(range(3), "leave")
        left += [(rank, pool.hear(rank)["value"]) for rank in range(3)]
        if generation == 3:
            assert pool.hear(3) == {"died": -9}
        else:
            pool.ask([3], "leave")
    for rank in range(3):
        found = [value for other, value in left if other == rank]
        assert found[1:] == found[1:2] * 5
        assert (found[1]["memory"], found[1]["groups"]) == (0, False)
    assert not {
        file for file in set(os.listdir(tempfile.gettempdir())) - files if file.startswith("gmi-")
    }


def client_of(pool: Pool) -> TCPStore:
    return TCPStore("127.0.0.1", pool.store.port, is_master=False)


def in_threads(*actions: Any) -> None:
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_group_that_does_not_come_about_is_called_off(pool: Pool) -> None:
    errors = []

    def join() -> None:
        with pytest.raises(RunError, match="in vain was called off") as caught:
            Mesh(0, 2, client_of(pool), "in vain", timeout_s=NEVER_S)
        errors.append(caught)

    in_threads(join, lambda: call_off(pool.store, "in vain"))
    assert errors
    with pytest.raises(RunError, match="not all members of group too late came within 0.1 s"):
        Mesh(0, 2, client_of(pool), "too late", timeout_s=0.1)
    with pytest.raises(RunError, match="too late was called off"):
        Mesh(1, 2, client_of(pool), "too late", timeout_s=NEVER_S)
