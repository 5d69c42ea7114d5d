"""Instances as processes: ``python -m tests.gmi.sharing.instances ROLE …``, started by `start`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from runtime.gmi.sharing.batcher import Batcher, Range
from runtime.gmi.sharing.control import SharingError
from runtime.gmi.sharing.dispenser import Dispenser
from runtime.gmi.sharing.migrator import Migrator
from tests.gmi.sharing.samples import plan, require_whole, samples

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
"""Upper bound of waits that end by themselves much sooner."""
GAVE_UP = 3
"""Exit code of an agent that nobody took samples of."""
BATCH_SAMPLES = 6


def start(role: str, control: socket.socket | None, *words: Any, stdout: Any = None) -> subprocess.Popen[bytes]:
    """Starts an instance, which gets a socket."""
    descriptors = [control.fileno()] if control else []
    try:
        return subprocess.Popen([sys.executable, "-m", "tests.gmi.sharing.instances", role, *map(str, descriptors),
                                 *map(str, words)], cwd=ROOT, pass_fds=descriptors, stdout=stdout)
    finally:
        if control:
            control.close()


def agent(control_fd: int, end: int, timeout_s: float) -> None:
    """Plays until so many samples are written."""
    dispenser = Dispenser(control_fd, plan())
    first = dispenser.first
    while first < end:
        count = min(end - first, 1 + first % 5)
        try:
            dispenser.write(samples(dispenser.agent, first, count), first, timeout_s=timeout_s)
        except TimeoutError:
            raise SystemExit(GAVE_UP) from None
        first += count
    dispenser.close()


def half_agent(control_fd: int) -> None:
    """Writes six samples, and of some more not every field; then says so and is stuck."""
    dispenser = Dispenser(control_fd, plan())
    dispenser.write(samples(dispenser.agent, 0, 6), 0, timeout_s=PATIENCE_S)
    dispenser.write({"actions": samples(dispenser.agent, 6, 4)["actions"]}, 6, timeout_s=PATIENCE_S)
    print("stuck", flush=True)
    signal.pause()


def trainer(control_fd: int, path: str, batches: int) -> None:
    """Takes so many batches, notes their ranges in a file, and is stuck; it ends with the migrator."""
    batcher = Batcher(control_fd, plan(), BATCH_SAMPLES)
    with open(path, "a") as file, suppress(SharingError):
        for _ in range(batches):
            while (batch := batcher.take(PATIENCE_S)) is None:
                pass
            require_whole(batch)
            print(*(number for one in batch.ranges for number in one), file=file, flush=True)
        signal.pause()


def migrator(path: str) -> None:
    """Starts two agents, of which one waits for a trainer, and a trainer; tells their ids."""
    with closing(Migrator(plan())) as ours:
        children = [start("agent", ours.add_agent(number), 10**9, PATIENCE_S) for number in (0, 1)]
        children.append(start("trainer", ours.add_trainer(0), path, 10**9))
        while min(ours.accepted) < 100:
            ours.step(PATIENCE_S)
        print(*(child.pid for child in children), flush=True)
        while True:
            ours.step(PATIENCE_S)


def noted(path: Path) -> list[Range]:
    """The ranges that a trainer has noted; not a line that it was killed in."""
    numbers = [list(map(int, line.split())) for line in path.read_text().splitlines(keepends=True)
               if line.endswith("\n")]
    return [Range(*line[place:place + 3]) for line in numbers for place in range(0, len(line), 3)]


if __name__ == "__main__":
    match sys.argv[1:]:
        case "agent", control, last, patience_s:
            with suppress(SharingError):
                agent(int(control), int(last), float(patience_s))
        case "half_agent", control:
            half_agent(int(control))
        case "trainer", control, notes, count:
            trainer(int(control), notes, int(count))
        case "migrator", notes:
            migrator(notes)
        case _:
            os._exit(2)
