"""TensorBoard's files, read by TensorBoard itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runtime.show.tensorboard_log import TensorBoardLog
from tests.records.rows import a_row
from tests.simulators.disk import Disk


def read(directory: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_rows_are_read_again_and_a_later_session_takes_the_place_of_an_earlier_one(tmp_path: Path):
    for now_s in (17.0, 18.0):
        log = TensorBoardLog(tmp_path / "tensorboard", lambda now_s=now_s: now_s)
        log.add([a_row(k, env_steps_total=8 * k, kl=k + now_s, value_loss=1e300) for k in (1, 2)])
        log.add([a_row(3, env_steps_total=2**62, kl=0.0)])
    assert read(tmp_path / "tensorboard", "learner/kl") == [(8, 19.0), (16, 20.0), (2**62, 0.0)]
    assert [path.name.split(".")[:4] for path in sorted((tmp_path / "tensorboard").iterdir())] == [
        ["events", "out", "tfevents", f"00000000{now}"] for now in (17, 18)
    ]


@pytest.mark.parametrize("at", range(3))
def test_a_full_disk_is_said_where_the_row_is_added_and_leaves_no_half_of_it(
    tmp_path: Path, at: int
):
    disk = Disk(tmp_path).filled(at)
    with disk.mounted(), pytest.raises(OSError, match="the disk is full") as raised:
        TensorBoardLog(tmp_path / "tensorboard", lambda: 17.0).add([a_row(1)])
    assert raised.value.errno == errno.ENOSPC
    assert all(path.stat().st_size in (0, 74) for path in tmp_path.glob("tensorboard/*"))
