"""The run's directory: whatever happens, finished rounds are present, complete, and unique."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import RunDirectoryError
from runtime.records.events import EventLog
from runtime.records.files import to_json
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from tests.records.rows import a_row

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def directory(tmp_path: Path):
    directory = RunDirectory(tmp_path / "run")
    yield directory
    directory.close()


# Rounds


def rows(count: int) -> list[RoundRow]:
    return [a_row(i, kl=i * 0.1, detect_s=None) for i in range(1, count + 1)]


def test_rounds_are_read_as_they_were_written(directory: RunDirectory):
    assert directory.read_rounds() == []
    for i, row in enumerate(rows(3), 1):
        directory.append_round(row)
        assert directory.read_rounds() == rows(i)
    assert (directory.path / "rounds.jsonl").read_bytes().count(b"\n") == 3


def test_a_row_is_on_disk_when_it_was_appended(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    synced: list[bytes] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((directory.path / "rounds.jsonl").read_bytes())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    directory.append_round(rows(1)[0])
    # The file, and the directory that has its name now.
    assert synced == 2 * [(directory.path / "rounds.jsonl").read_bytes()]


@pytest.mark.parametrize(
    "tail", [b"{", b'{"round_index": 3', b'{"round_index": 3\n{"rou', b"\x00" * 64 + b"\n"]
)
def test_what_was_written_only_in_part_is_no_row_and_is_cut(directory: RunDirectory, tail: bytes):
    for row in rows(2):
        directory.append_round(row)
    path = directory.path / "rounds.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    assert directory.read_rounds() == rows(2)
    directory.keep_rounds(directory.read_rounds())
    assert path.read_bytes() == whole
    directory.append_round(rows(3)[2])
    assert directory.read_rounds() == rows(3)


def test_a_file_cut_at_any_byte_has_its_whole_rows(directory: RunDirectory):
    for row in rows(3):
        directory.append_round(row)
    path = directory.path / "rounds.jsonl"
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 97), len(whole) - 1, len(whole)}:
        path.write_bytes(whole[:length])
        assert directory.read_rounds() == rows(whole[:length].count(b"\n"))


def test_a_crash_while_rows_are_cut_loses_nothing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    for row in rows(3):
        directory.append_round(row)

    def crash(*_: object) -> None:
        raise OSError("crash")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="crash"):
        directory.keep_rounds(rows(1))
    assert directory.read_rounds() == rows(3)


# The directory


def test_a_directory_is_made_with_its_parents(tmp_path: Path):
    directory = RunDirectory(tmp_path / "a" / "b" / "c")
    assert directory.path.is_dir()
    assert not directory.holds_run
    (directory.path / "config.yaml").write_text("seed: 0\n")
    assert directory.holds_run
    directory.close()


def test_another_process_is_refused_and_not_after_a_kill(tmp_path: Path):
    path = tmp_path / "run"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from runtime.records.run_directory import RunDirectory\n"
            "held = RunDirectory(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)",
            str(path),
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunDirectoryError, match="another process"):
            RunDirectory(path)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    RunDirectory(path).close()


def test_where_nothing_can_be_locked_nobody_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunDirectoryError, match="cannot be locked: No locks available"):
        RunDirectory(tmp_path)


def test_the_lock_goes_with_its_holder(tmp_path: Path):
    first = RunDirectory(tmp_path)
    first.close()
    second = RunDirectory(tmp_path)
    first.close()
    with pytest.raises(RunDirectoryError):
        RunDirectory(tmp_path)
    second.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda tmp: tmp / "file",
        lambda tmp: tmp / "file" / "run",
        lambda tmp: tmp / "dangling",
        lambda tmp: tmp / ("x" * 300),
    ],
    ids=["a file", "below a file", "a dangling link", "too long a name"],
)
def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path: Path, make):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "nowhere")
    path = make(tmp_path)
    with pytest.raises(RunDirectoryError, match="cannot be written") as caught:
        RunDirectory(path)
    assert str(path) in str(caught.value)


# Events


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [1.0, float("-inf")], {"a": {"b": float("nan")}}]
)
def test_json_never_has_nan(directory: RunDirectory, value: object):
    with pytest.raises(ValueError, match="JSON"):
        to_json(value)
    with pytest.raises(ValueError, match="JSON"):
        directory.append_round(dataclasses.replace(a_row(1), kl=float("nan")))
    with pytest.raises(ValueError, match="JSON"):
        EventLog(directory.path / "events.jsonl", lambda: "now").append("kind", value=value)
    assert directory.read_rounds() == []
    assert (
        not (directory.path / "events.jsonl").exists()
        or (directory.path / "events.jsonl").read_bytes() == b""
    )


def test_events_carry_time_kind_and_fields(tmp_path: Path):
    times = iter(["2026-11-20T10:00:00+00:00", "2026-11-20T10:00:01+00:00"])
    log = EventLog(tmp_path / "events.jsonl", lambda: next(times))
    log.append("actor_failed", slot=3, error='RuntimeError: ü\n"quoted"')
    log.append("round_shrunk", wanted=5, granted=None)
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "time": "2026-11-20T10:00:00+00:00",
            "event": "actor_failed",
            "slot": 3,
            "error": 'RuntimeError: ü\n"quoted"',
        },
        {
            "time": "2026-11-20T10:00:01+00:00",
            "event": "round_shrunk",
            "wanted": 5,
            "granted": None,
        },
    ]


def test_listeners_hear_of_each_event_after_it_was_written(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, lambda: "now")
    heard = []

    def listener(name: str):
        return lambda kind, fields: heard.append(
            (name, kind, dict(fields), path.read_bytes().count(b"\n"))
        )

    log.append("before")
    for name in ("first", "second"):
        log.listen(listener(name))
    log.append("actor_failed", slot=1)
    assert heard == [(name, "actor_failed", {"slot": 1}, 2) for name in ("first", "second")]
