"""Machines that people have: quotas of containers, file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from runtime import machine
from tests.helpers import overrides, pendulum_file, train


@pytest.mark.parametrize(
    ("groups", "files", "cores", "mib"),
    [
        ("0::/job/step", {"job/cpu.max": "100000 100000", "job/memory.max": "7340032"}, 1, 7),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        (
            "3:cpu,cpuacct:/docker/1f\n2:memory:/docker/1f\n0::/",
            {
                # A container sees its own group at the top.
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "7340032",
            },
            1,
            7,
        ),
        (
            "3:cpu,cpuacct:/a\n2:memory:/a",
            {
                "cpu/a/cpu.cfs_quota_us": "-1",
                "cpu/a/cpu.cfs_period_us": "100000",
                "memory/a/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
            None,
        ),
    ],
    ids=["version 2", "version 2 without limits", "version 1", "version 1 without limits"],
)
def test_limits_of_a_container_count_and_not_the_host(
    tmp_path: Path, groups: str, files: dict[str, str], cores: int | None, mib: int | None
) -> None:
    own = tmp_path / "own"
    own.write_text(f"{groups}\n")
    nothing = tmp_path / "nothing"
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    without = machine.cores(own=nothing), machine.memory_bytes(own=nothing)
    found = machine.cores(tmp_path / "cgroup", own), machine.memory_bytes(tmp_path / "cgroup", own)
    assert found == (cores or without[0], mib * 2**20 if mib else without[1])


def test_a_quota_above_one_core_is_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(32))
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert machine.cores(tmp_path, tmp_path / "own") == 3


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (errno.ENOLCK, 0, "! lock: the file system of "),
        (errno.ENOSYS, 0, "! lock: the file system of "),
        (errno.EOPNOTSUPP, 0, "! lock: the file system of "),
        (errno.EIO, 2, "cannot be locked: Input/output error"),
        (errno.EWOULDBLOCK, 2, "another process trains there"),
    ],
)
def test_a_file_system_without_locks_trains_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, words: str
) -> None:
    def flock(descriptor: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    ended = train(pendulum_file(tmp_path), tmp_path / "run", *overrides(stop__max_rounds=1))
    assert (ended.returncode, words in ended.stdout + ended.stderr) == (code, True), ended
