"""Environments that do to a machine what users' simulators do."""

from __future__ import annotations

import fcntl
import subprocess
import threading
import time
from pathlib import Path

import gymnasium

from tests.environments import Counter

FOREVER_S = 9000


def make(kind: str, episode_steps: int = 50, **kwargs: object) -> gymnasium.Env:
    """Makes a class of this module, whose episodes are cut after so many steps."""
    return gymnasium.wrappers.TimeLimit(
        globals()[kind](episode_steps=None, **kwargs), episode_steps
    )


class Server(Counter):
    """Starts a program in a session of its own, which holds a lock as if it were a port; nobody ends it."""

    def __init__(self, folder: str, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        with open(f"{folder}/port", "w") as port:
            try:
                fcntl.flock(port, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError("the port is in use") from None
            program = subprocess.Popen(
                ["sleep", str(FOREVER_S)], pass_fds=[port.fileno()], start_new_session=True
            )
        Path(folder, f"program-{program.pid}").touch()


class Threaded(Counter):
    """Starts a thread at each reset that keeps its process from ending by itself."""

    def reset(self, *, seed=None, options=None):
        threading.Thread(target=time.sleep, args=[FOREVER_S]).start()
        return super().reset(seed=seed)
