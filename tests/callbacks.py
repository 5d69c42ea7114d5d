"""Callbacks for tests, used by import path."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nitro_rl import Callback, RoundRow, RunControl


class Noting(Callback):
    """Records its calls and counts the rounds."""

    def __init__(self, name: str = "") -> None:
        self.name, self.told, self.rounds = name, [], 0

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        self.told.append(f"round {row.round_index}")
        self.rounds += 1

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.told.append(f"end {summary['stop_reason']}")

    def state(self) -> Any:
        return {"rounds": self.rounds}

    def load_state(self, state: Any) -> None:
        self.rounds = state["rounds"]


class Stopping(Callback):
    """Stops the run after one round."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        if row.round_index == self.after:
            run.stop("it learns\nnothing more")


class Misspelt(Callback):
    """Has a method that nothing calls."""

    def on_rounds_end(self, row: RoundRow, run: RunControl) -> None:
        """Was to be `on_round_end`."""


class Killing(Noting):
    """Kills its own process in the second round, once, and leaves its record at the end."""

    def __init__(self, record: str) -> None:
        super().__init__()
        self.record = Path(record)

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        super().on_round_end(row, run)
        if row.round_index == 2 and not self.record.exists():
            self.record.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self.record.write_text(", ".join([*self.told, f"{self.rounds} rounds"]))


class Raising(Callback):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where, self.rounds = where, 0

    def _raise_in(self, where: str) -> None:
        if where == self.where:
            raise ValueError("the mail server does not answer")

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        self.rounds += 1
        self._raise_in("on_round_end")

    def on_end(self, summary: Mapping[str, Any]) -> None:
        self._raise_in("on_end")

    def state(self) -> Any:
        if self.rounds > 0:
            self._raise_in("state")
            return {1, 2} if self.where == "set" else None
        return None

    def load_state(self, state: Any) -> None:
        self._raise_in("load_state")


class Hanging(Callback):
    """Hangs when a round ends."""

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        time.sleep(9000)
