"""Checkpoints: bit for bit as saved, or the one before, or a named error; never anything in between."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime.records.checkpoint
from runtime.errors import CheckpointError
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint


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


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), pytest.param(object(), id="object"), {1, 2}], ids=repr
)
def test_what_json_cannot_hold_is_refused_and_the_last_one_stays(tmp_path: Path, value: object):
    save_checkpoint(tmp_path, checkpoint(1))
    with pytest.raises((ValueError, TypeError)):
        save_checkpoint(tmp_path, Checkpoint(2, {}, {"value": value}))
    assert_is(load(tmp_path)[0], checkpoint(1))


# Choice of checkpoint


def test_values_come_back_as_json_has_them(tmp_path: Path):
    save_checkpoint(tmp_path, Checkpoint(1, {}, {"counts": {3: (4, 5)}}))
    assert load(tmp_path) == (Checkpoint(1, {}, {"counts": {"3": [4, 5]}}), [])


def test_nothing_was_ever_written(tmp_path: Path):
    assert load(tmp_path / "none") == (None, [])
    assert load(tmp_path) == (None, [])


def test_the_newest_is_loaded_and_two_are_kept(tmp_path: Path):
    (tmp_path / "round_000001.safetensors.tmp").write_bytes(b"killed")
    for round_index in range(1, 13):
        save_checkpoint(tmp_path, checkpoint(round_index))
        assert_is(load(tmp_path)[0], checkpoint(round_index))
        assert len(files(tmp_path) - {"round_000001.safetensors.tmp"}) == 2 * min(round_index, 2)
    assert files(tmp_path) == {
        f"round_0000{i}.{end}" for i in (11, 12) for end in ("json", "safetensors")
    }


def test_round_a_million_is_newer_than_the_one_before(tmp_path: Path):
    for round_index in (999_998, 999_999, 1_000_000, 1_000_001):
        save_checkpoint(tmp_path, checkpoint(round_index))
    assert_is(load(tmp_path)[0], checkpoint(1_000_001))


# Killed


class Killed(BaseException):
    pass


def test_killed_at_any_write_the_one_before_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real = runtime.records.checkpoint.write_atomically
    save_checkpoint(tmp_path, checkpoint(1))
    written: list[str] = []

    def dies_before(count: int):
        def write(path: Path, data: bytes) -> None:
            if len(written) == count:
                raise Killed
            written.append(path.suffix)
            real(path, data)

        return write

    for count in range(2):
        written.clear()
        monkeypatch.setattr(runtime.records.checkpoint, "write_atomically", dies_before(count))
        with pytest.raises(Killed):
            save_checkpoint(tmp_path, checkpoint(2))
        assert written == [".safetensors"][:count], "the JSON is written last"
        loaded, skipped = load(tmp_path)
        assert_is(loaded, checkpoint(1))
        assert skipped == []
    monkeypatch.setattr(runtime.records.checkpoint, "write_atomically", real)
    save_checkpoint(tmp_path, checkpoint(2))
    assert_is(load(tmp_path)[0], checkpoint(2))


def test_killed_while_old_ones_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for round_index in (1, 2):
        save_checkpoint(tmp_path, checkpoint(round_index))
    real = os.unlink

    def dies_after(path: Path) -> None:
        real(path)
        raise Killed

    monkeypatch.setattr(os, "unlink", dies_after)
    with pytest.raises(Killed):
        save_checkpoint(tmp_path, checkpoint(3))
    monkeypatch.setattr(os, "unlink", real)
    loaded, skipped = load(tmp_path)
    assert_is(loaded, checkpoint(3))
    assert skipped == []
    save_checkpoint(tmp_path, checkpoint(4))
    assert_is(load(tmp_path)[0], checkpoint(4))
    assert files(tmp_path) == {
        f"round_00000{i}.{end}" for i in (3, 4) for end in ("json", "safetensors")
    }


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


DAMAGES = {
    "json empty": lambda d: (d / "round_000002.json").write_bytes(b""),
    "json cut": lambda d: (d / "round_000002.json").write_bytes(
        (d / "round_000002.json").read_bytes()[:-40]
    ),
    "json of another version": lambda d: (d / "round_000002.json").write_bytes(
        (d / "round_000002.json").read_bytes().replace(b'"version": 2', b'"version": 99')
    ),
    "arrays missing": lambda d: (d / "round_000002.safetensors").unlink(),
    "arrays empty": lambda d: (d / "round_000002.safetensors").write_bytes(b""),
    "arrays cut": lambda d: (d / "round_000002.safetensors").write_bytes(
        (d / "round_000002.safetensors").read_bytes()[:-1]
    ),
    "arrays longer": lambda d: (d / "round_000002.safetensors").write_bytes(
        (d / "round_000002.safetensors").read_bytes() + b"\0"
    ),
    "arrays of another": lambda d: (d / "round_000002.safetensors").write_bytes(
        (d / "round_000001.safetensors").read_bytes()
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_passed_over_and_reported(tmp_path: Path, damage: str):
    two(tmp_path)
    DAMAGES[damage](tmp_path)
    loaded, skipped = load(tmp_path)
    assert_is(loaded, checkpoint(1))
    assert [stem for stem, _ in skipped] == ["round_000002"]
    assert "round_000002" in skipped[0][1]


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
    DAMAGES["json of another version"](tmp_path)
    with pytest.raises(CheckpointError, match="none of the checkpoints") as caught:
        load(tmp_path)
    assert all(
        words in str(caught.value)
        for words in (
            str(tmp_path),
            "round_000001 cannot be read",
            "round_000002.json is of version 99",
        )
    )
