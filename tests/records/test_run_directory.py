"""The run's directory: whatever happens, finished rounds are present, complete, and unique."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import RunDirectoryError
from runtime.records.files import to_json
from runtime.records.observers import EventLog
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


def test_what_cannot_be_read_is_named_in_one_line(directory: RunDirectory):
    path = directory.path / "rounds.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n" + a_row(1).to_json_line())
    assert directory.read_rounds() == [a_row(1)], "as another damaged line"
    path.unlink()
    path.mkdir()
    with pytest.raises(
        RunDirectoryError, match=r"^.*rounds\.jsonl cannot be read: Is a directory$"
    ):
        directory.read_rounds()


# The directory


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


@pytest.mark.parametrize("name", ["file", "file/run", "x" * 300])
def test_a_place_that_cannot_be_a_directory_is_refused(tmp_path: Path, name: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=f"out = {tmp_path / name}: cannot be written"):
        RunDirectory(tmp_path / name)


def test_a_directory_goes_if_no_run_began_in_it(tmp_path: Path):
    for holds_run in (False, True):
        directory = RunDirectory(tmp_path / "a" / "run")
        assert not directory.holds_run
        if holds_run:
            directory.append_round(a_row(1))
        directory.close()
        assert directory.path.exists() == holds_run


# Events


def test_json_never_has_nan(directory: RunDirectory):
    events = EventLog(directory.path / "events.jsonl", lambda: "now")
    for write in (
        lambda: to_json({"a": {"b": float("nan")}}),
        lambda: directory.append_round(dataclasses.replace(a_row(1), kl=float("nan"))),
        lambda: events.append("kind", value=[1.0, float("-inf")]),
    ):
        with pytest.raises(ValueError, match="JSON"):
            write()
    assert directory.read_rounds() == []
    assert not (directory.path / "events.jsonl").exists()


def test_events_have_time_kind_and_fields_and_listeners_hear_of_them_once_written(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, lambda: "2026-11-20T10:00:00+00:00")
    heard: list[object] = []
    log.append("before")
    log.listen(lambda kind, fields: heard.append((kind, dict(fields), len(path.read_bytes()))))
    error = 'RuntimeError: ü\n"quoted"'
    log.append("actor_failed", slot=3, error=error)
    assert heard == [("actor_failed", {"slot": 3, "error": error}, path.stat().st_size)]
    assert json.loads(path.read_bytes().splitlines()[1]) == {
        "time": "2026-11-20T10:00:00+00:00",
        "event": "actor_failed",
        "slot": 3,
        "error": error,
    }
