"""Files that are complete after a crash at any operation and on a full disk."""

from __future__ import annotations

import errno
import os
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from runtime.errors import RunError
from runtime.records.files import append, check_place, write_atomically
from tests.simulators.disk import Disk


def test_a_file_is_written_and_replaced_whatever_a_killed_process_left(tmp_path: Path):
    path = tmp_path / "a.json"
    (tmp_path / "a.json.tmp").write_bytes(b"half")
    for data in (b"old", b"", b"new" * 100_000):
        write_atomically(path, data)
        assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == {"a.json": data}


def test_a_crash_at_any_step_leaves_the_old_or_the_new(tmp_path: Path):
    path, seen = tmp_path / "a.json", []
    write_atomically(path, b"old")
    disk = Disk(tmp_path).watched(
        lambda moment: seen.append((moment.split(", ")[1], path.read_bytes()))
    )
    with disk.mounted():
        write_atomically(path, b"new and longer")
    assert [operation.split()[0] for operation in disk.operations] == [
        "create",
        "write",
        "fsync",
        "replace",
        "sync",
    ]
    assert {data for operation, data in seen if not operation.startswith("sync")} == {b"old"}
    assert seen[-1] == ("sync directory .", b"new and longer")


@pytest.mark.parametrize("at", range(5))
def test_a_full_disk_leaves_the_old_says_so_and_keeps_nothing_half(tmp_path: Path, at: int):
    path = tmp_path / "a.json"
    write_atomically(path, b"old")
    with Disk(tmp_path).filled(at).mounted():
        if at in (3, 4):
            # Neither needs disk space: the name and the directory.
            write_atomically(path, b"old")
        else:
            with pytest.raises(OSError, match="the disk is full") as caught:
                write_atomically(path, b"new")
            assert re.search(
                rf"\([\d,]+ bytes are free in {tmp_path}\)\. Make room, .* --resume.*'{path}'",
                str(caught.value),
            )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"old"}


def test_any_other_refusal_of_a_write_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    for write in (write_atomically, partial(append, is_synced=True)):
        with monkeypatch.context() as patch, pytest.raises(OSError, match=r"too large: .*rows'"):
            patch.setattr(os, "write", refuse)
            write(tmp_path / "rows", b"data")


@pytest.mark.parametrize("at", [0, 1])
def test_a_line_for_which_there_is_no_room_is_not_there_at_all(tmp_path: Path, at: int):
    path = tmp_path / "rows"
    append(path, b"first\n", is_synced=True)
    with Disk(tmp_path).filled(at).mounted(), pytest.raises(OSError, match="the disk is full"):
        append(path, b"second\n", is_synced=True)
    append(path, b"third\n", is_synced=False)
    assert path.read_bytes() == b"first\nthird\n"


def test_a_line_that_a_crash_cut_off_spoils_no_other_one(tmp_path: Path):
    (tmp_path / "rows").write_bytes(b"first\nsec")
    append(tmp_path / "rows", b"third\n", is_synced=False)
    assert (tmp_path / "rows").read_bytes().splitlines() == [b"first", b"sec", b"third"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("page.txt", r"whose name ends in \.html \| \.svg, in"),
        ("a folder.html", r"whose name ends in \.html \| \.svg, in"),
        ("nowhere/page.html", "in a folder that is there and can be written to$"),
        ("page.HTML", ""),
        ("page.svg", ""),
    ],
)
def test_a_place_for_a_file_is_checked_before_anything_is_done_for_it(
    tmp_path: Path, name: str, told: str
) -> None:
    (tmp_path / "a folder.html").mkdir()
    with pytest.raises(RunError, match=told) if told else nullcontext():
        check_place("--out", tmp_path / name, (".html", ".svg"))
