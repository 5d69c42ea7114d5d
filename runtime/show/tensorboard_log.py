"""TensorBoard's view of a run: its rows' numbers against environment steps."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from runtime.records.files import append, make_directory
from runtime.records.observers import Observer
from runtime.records.rows import RoundRow


class TensorBoardLog(Observer):
    """Writes rows into a new event file, so that TensorBoard drops repeated rounds of earlier files.

    It writes without a thread, unlike `torch.utils.tensorboard`: a full disk is an error where a row is added.
    """

    def __init__(self, directory: Path, now_s: Callable[[], float]) -> None:
        """Begins a file.

        Args:
            directory: Directory of all event files of the run.
            now_s: Returns the seconds since 1970.

        Raises:
            OSError: The file cannot be written.
        """
        make_directory(directory)
        self._now_s = now_s
        self._path = (
            directory
            / f"events.out.tfevents.{now_s():010.0f}.{socket.gethostname()}.{os.getpid()}.0"
        )
        self._write(
            [
                Event(file_version="brain.Event:2"),
                Event(step=1, session_log=SessionLog(status=SessionLog.START)),
            ]
        )

    def add(self, rows: Sequence[RoundRow]) -> None:
        """Adds rows.

        Raises:
            OSError: The file cannot be written.
        """
        self._write(
            [
                Event(
                    step=row.env_steps_total,
                    summary=Summary(
                        value=[
                            Summary.Value(tag=tag, simple_value=value)
                            for tag, value in row.scalars().items()
                        ]
                    ),
                )
                for row in rows
            ]
        )

    def on_round_end(self, row: RoundRow) -> None:
        """Adds the round's row."""
        self.add([row])

    def _write(self, events: Sequence[Event]) -> None:
        stream = io.BytesIO()
        for event in events:
            event.wall_time = self._now_s()
            RecordWriter(stream).write(event.SerializeToString())
        append(self._path, stream.getvalue(), is_synced=False, is_line=False)
