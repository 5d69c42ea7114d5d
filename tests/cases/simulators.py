"""Environments that do to a machine what users' simulators do."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np

from tests.environments import Counter

FOREVER_S = 9000
CROWDED_S = 0.005
COMPANION_MIB = 150


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


class Licence(Counter):
    """Takes a licence, and gives it back when it is closed; its steps take long enough to be interrupted."""

    taken = 0

    def __init__(
        self, folder: str, episode_steps: int | None, raises_at: int = -1, close_s: float = 0.0
    ) -> None:
        super().__init__(episode_steps)
        Licence.taken += 1
        self.raises_at, self.close_s = raises_at, close_s
        self.folder, self.name = Path(folder), f"{os.getpid()}-{self.taken}"
        (self.folder / f"taken-{self.name}").touch()
        with open(self.folder / "counts", "a") as counts:
            print(len([*self.folder.glob("taken-*")]), file=counts)

    def step(self, action):
        time.sleep(0.003)
        if self.count == self.raises_at and not (self.folder / "raised").exists():
            (self.folder / "raised").touch()
            raise RuntimeError("the motor is on fire")
        return super().step(action)

    def close(self):
        time.sleep(self.close_s)
        (self.folder / f"taken-{self.name}").rename(self.folder / f"returned-{self.name}")


class Waiting(Counter):
    """Waits for a place, of which there is one in a process, and which nobody gives back."""

    place = threading.Lock()

    def __init__(self, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        self.place.acquire()


class Crowded(Counter):
    """Computes for `CROWDED_S` in each step, on a core that a program of its own keeps busy."""

    def __init__(self, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        subprocess.Popen(["sh", "-c", "while :; do :; done"])

    def step(self, action):
        end_s = time.process_time() + CROWDED_S
        while time.process_time() < end_s:
            pass
        return super().step(action)


class Companion(Counter):
    """Starts a program that needs `COMPANION_MIB` of memory."""

    def __init__(self, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        text = f"held = b'x' * ({COMPANION_MIB} << 20); print(flush=True); import time; time.sleep({FOREVER_S})"
        self.program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        assert self.program.stdout is not None
        self.program.stdout.readline()

    def close(self):
        self.program.kill()


class Descriptors(Counter):
    """Opens a file in each step, never closes it, and may open only so many."""

    def __init__(self, episode_steps: int | None, limit: int = 300) -> None:
        super().__init__(episode_steps)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    def step(self, action):
        os.open(os.devnull, os.O_RDONLY)
        return super().step(action)


class Memory(Counter):
    """Keeps half a mebibyte in each step."""

    kept: ClassVar[list[np.ndarray]] = []

    def step(self, action):
        self.kept.append(np.ones(2**16))
        return super().step(action)


class Semaphore(Counter):
    """Makes a lock between processes."""

    def __init__(self, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        self.lock = multiprocessing.get_context("spawn").Lock()


class Shared(Counter):
    """Makes a block of shared memory."""

    def __init__(self, episode_steps: int | None) -> None:
        super().__init__(episode_steps)
        SharedMemory(create=True, size=8).unlink()


class Threaded(Counter):
    """Starts a thread at each reset that keeps its process from ending by itself."""

    def reset(self, *, seed=None, options=None):
        threading.Thread(target=time.sleep, args=[FOREVER_S]).start()
        return super().reset(seed=seed)
