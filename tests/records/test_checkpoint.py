"""Checkpoints: bit for bit as saved, or the one before, or a named error; never anything in between."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import CheckpointError
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from tests.simulators.disk import Disk


def checkpoint(round_index: int, **arrays: np.ndarray) -> Checkpoint:
    return Checkpoint(
        round_index,
        arrays or {"weight": np.full((2, 3), round_index, np.float32)},
        {"round": round_index, "nested": {"rng": [2**127 + round_index, None, 0.1]}},
    )


def load(directory: Path) -> tuple[Checkpoint | None, list[tuple[str, str]]]:
    skipped: list[tuple[str, str]] = []
    return load_newest_checkpoint(
        directory, lambda stem, reason: skipped.append((stem, reason))
    ), skipped


def assert_is(loaded: Checkpoint | None, expected: Checkpoint) -> None:
    assert loaded is not None
    assert loaded.round_index == expected.round_index
    assert loaded.values == expected.values
    assert loaded.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        found = loaded.arrays[name]
        assert (found.dtype, found.shape, found.tobytes()) == (
            array.dtype,
            np.shape(array),
            array.tobytes(),
        ), name


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Round trip


def test_arrays_and_numbers_come_back_bit_for_bit(tmp_path: Path):
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000, 1], np.uint64)
    block = np.arange(24, dtype=np.float32).reshape(4, 6)
    saved = checkpoint(
        1,
        special=bits.view(np.float64),
        scalar=np.float64(-0.0),
        inverted=np.array(np.nan, np.float32),
        transposed=block.T,
        strided=block[::2, ::3],
        empty=np.zeros((0, 3), np.int8),
        flags=np.array([True, False]),
    )
    save_checkpoint(tmp_path, saved)
    assert_is(load(tmp_path)[0], saved)


# Choice of checkpoint


def test_values_come_back_as_json_has_them(tmp_path: Path):
    assert load(tmp_path / "none") == (None, [])
    save_checkpoint(tmp_path, Checkpoint(1, {}, {"counts": {3: (4, 5)}}))
    assert load(tmp_path) == (Checkpoint(1, {}, {"counts": {"3": [4, 5]}}), [])


@pytest.mark.parametrize("first", [1, 999_990], ids=["small", "a million"])
def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path, first: int):
    (tmp_path / "round_000001.safetensors.tmp").write_bytes(b"killed")
    for round_index in range(first, first + 13):
        save_checkpoint(tmp_path, checkpoint(round_index))
        assert_is(load(tmp_path)[0], checkpoint(round_index))
    assert files(tmp_path) == {
        f"round_{index:06}.{end}"
        for index in (first + 11, first + 12)
        for end in ("json", "safetensors")
    }


# Killed


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", range(14))
def test_killed_at_any_operation_this_one_or_the_one_before_is_loaded(tmp_path: Path, at: int):
    """On the way, it may write two files and remove two."""
    two(tmp_path)

    def kill(moment: str) -> None:
        if moment.startswith(f"before {at},"):
            raise Killed

    disk = Disk(tmp_path).watched(kill)
    with disk.mounted(), suppress(Killed):
        save_checkpoint(tmp_path, checkpoint(3))
    has_json = (tmp_path / "round_000003.json").exists()
    loaded, skipped = load(tmp_path)
    assert_is(loaded, checkpoint(3 if has_json else 2))
    assert skipped == []
    save_checkpoint(tmp_path, checkpoint(4))
    assert_is(load(tmp_path)[0], checkpoint(4))
    assert len(files(tmp_path)) == 4


# Damaged


@pytest.mark.parametrize(("rows", "chosen"), [(2, 2), (1, 1), (0, None)])
def test_one_without_its_row_is_passed_over(tmp_path: Path, rows: int, chosen: int | None):
    two(tmp_path)
    skipped: list[str] = []

    def found() -> int | None:
        checkpoint = load_newest_checkpoint(
            tmp_path, lambda stem, reason: skipped.append(f"{stem}: {reason}"), last_round=rows
        )
        return checkpoint and checkpoint.round_index

    if chosen is None:
        with pytest.raises(CheckpointError, match="round_000001 is newer than the rows"):
            found()
    else:
        assert found() == chosen
    assert len(skipped) == 2 - rows


def two(directory: Path) -> None:
    for round_index in (1, 2):
        save_checkpoint(directory, checkpoint(round_index))


@pytest.mark.parametrize("end", ["json", "safetensors"])
@pytest.mark.parametrize(
    "damaged",
    [
        lambda data: b"",
        lambda data: data[:-40],
        lambda data: data + b"x",
        lambda data: data.replace(b'"version": 2', b'"version": 99'),
    ],
    ids=["empty", "cut", "longer", "another version"],
)
def test_a_damaged_one_is_passed_over_and_reported(tmp_path: Path, end: str, damaged: Any):
    two(tmp_path)
    path = tmp_path / f"round_000002.{end}"
    data = path.read_bytes()
    path.write_bytes(damaged(data))
    loaded, skipped = load(tmp_path)
    is_changed = path.read_bytes() != data
    assert_is(loaded, checkpoint(1 if is_changed else 2))
    assert [stem for stem, _ in skipped] == ["round_000002"] * is_changed


@settings(max_examples=60)
@given(data=st.data())
def test_any_flipped_bit_is_seen(tmp_path: Path, data: st.DataObject):
    if not files(tmp_path):
        two(tmp_path)
    path = tmp_path / data.draw(st.sampled_from(["round_000002.json", "round_000002.safetensors"]))
    sound = path.read_bytes()
    content = bytearray(sound)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    loaded, skipped = load(tmp_path)
    path.write_bytes(sound)
    # A flipped bit that preserves the JSON's meaning, such as a space turned into a newline, is not damage.
    assert_is(loaded, checkpoint(1 if skipped else 2))
    assert skipped or path.suffix == ".json"


def test_when_all_are_damaged_it_is_an_error_that_says_why(tmp_path: Path):
    two(tmp_path)
    (tmp_path / "round_000001.json").write_bytes(b"{")
    newest = tmp_path / "round_000002.json"
    newest.write_bytes(newest.read_bytes().replace(b'"version": 2', b'"version": 99'))
    with pytest.raises(CheckpointError, match="none of .*2.json is of version 99.*1 cannot be"):
        load(tmp_path)
