"""Custom environments whose actors behave, raise, die, hang or talk, for use by name.

Actor processes import them as ``tests.fleet_environments:steady``, for example. If the variable
FLEET_ENVIRONMENTS_DIRECTORY names a folder, each environment leaves a file there at its special step, named after
itself and its process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import gymnasium
import numpy as np

OBSERVATION_SIZE, ACTION_SIZE = 3, 2
DIRECTORY_VARIABLE = "FLEET_ENVIRONMENTS_DIRECTORY"
SPECIAL_STEP = 3
HANG_S = 9000
"""Longer than any test waits for the end of what hangs."""


class Steady(gymnasium.Env):
    """A damped point that is pushed around. An episode takes 11 steps. It does something special at one of them."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)

    def __init__(self, special: Callable[[], None] | None = None) -> None:
        self._special = special
        self._steps_here = 0
        self._state = np.zeros(OBSERVATION_SIZE)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self._state = self.np_random.standard_normal(OBSERVATION_SIZE)
        self._steps = 0
        return self._state.copy(), {}

    def step(self, action: np.ndarray):
        self._steps_here += 1
        if self._special is not None and self._steps_here == SPECIAL_STEP:
            self._special()
        self._state = 0.9 * self._state
        self._state[:ACTION_SIZE] += 0.1 * action
        self._steps += 1
        return self._state.copy(), float(self._state.sum()), self._steps >= 11, False, {}

    def get_state(self) -> dict[str, np.ndarray]:
        return {"state": self._state.copy(), "steps": np.array(self._steps)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._state, self._steps = np.array(state["state"]), int(state["steps"])


def mark(name: str) -> None:
    """Leaves a file in the folder that shows how far this process got."""
    folder = os.environ.get(DIRECTORY_VARIABLE)
    if folder:
        (Path(folder) / f"{name}-{os.getpid()}").touch()


def _special(name: str, act: Callable[[], None]) -> Callable[[], Steady]:
    def marked() -> None:
        mark(name)
        act()

    return lambda: Steady(marked)


def _raise() -> None:
    raise RuntimeError("broken joint 17")


def _exit() -> None:
    os._exit(7)


def _exit_politely() -> None:
    sys.exit("enough")


def _die_by(number: int) -> Callable[[], None]:
    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(HANG_S)

    return act


def _hang_in_c() -> None:
    # Holds the interpreter's lock, so no other thread of this process runs.
    ctypes.PyDLL(None).sleep(HANG_S)


steady = Steady
raising = _special("raising", _raise)
exiting = _special("exiting", _exit)
exiting_politely = _special("exiting_politely", _exit_politely)
killed = _special("killed", _die_by(signal.SIGKILL))
segfaulting = _special("segfaulting", _die_by(signal.SIGSEGV))
hanging = _special("hanging", lambda: time.sleep(HANG_S))
hanging_in_c = _special("hanging_in_c", _hang_in_c)
napping = _special("napping", lambda: time.sleep(0.3))
