"""Callbacks for tests, used by import path, and an environment whose difficulty one of them raises."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from nitro_rl import Callback, RoundRow, RunControl
from tests.environments import StatefulCounter


class Noting(Callback):
    """Records its calls and counts the rounds."""

    def __init__(self, name: str = "") -> None:
        self.name, self.told, self.rounds = name, [], 0

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        self.told.append(f"evaluation {row.round_index}")

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


class Longer(Callback):
    """Makes episodes longer every second round; may kill its own process once."""

    def __init__(self, kill_in: int | None = None, flag: str = "") -> None:
        self.rounds, self.kill_in, self.flag = 0, kill_in, flag

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        self.rounds += 1
        if row.round_index == self.kill_in and not os.path.exists(self.flag):
            with open(self.flag, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        if self.rounds % 2 == 0:
            run.change_environment(episode_steps=run.environment_kwargs["episode_steps"] + 5)

    def state(self) -> Any:
        return self.rounds

    def load_state(self, state: Any) -> None:
        self.rounds = state


class Raising(Callback):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where, self.rounds = where, 0

    def _raise_in(self, where: str) -> None:
        if where == self.where:
            raise ValueError("the curriculum has no such lesson")

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        self._raise_in("on_evaluation")

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


def make_longer(episode_steps: int) -> StatefulCounter:
    return StatefulCounter(episode_steps)
