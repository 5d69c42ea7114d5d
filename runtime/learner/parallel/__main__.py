"""One of the other processes: does what the first one says, until it says nothing more."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import RunError
from runtime.learner import make_learner
from runtime.learner.parallel.group import TorchGroup, device_of, join_group, leave_group
from runtime.learner.parallel.learner import do_task
from runtime.learner.parallel.processes import START_TIMEOUT_S
from runtime.learner.parallel.tasks import END, read_task, spec_of
from runtime.ports.learning import Learner
from runtime.processes.inside import connect


def main(control_fd: int, device: str, timeout_s: float) -> None:
    """Joins the group, then follows the tasks that come through standard input."""
    connection, _ = connect(control_fd)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The first process decides what these mean, and ends this one.
        signal.signal(number, signal.SIG_IGN)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                     timeout=timedelta(seconds=START_TIMEOUT_S))
    group = TorchGroup(rank, size, timeout_s=timeout_s, check=lambda: None, explain=RunError)
    connection.send_bytes(b"started")
    join_group(rank, size, device, store, timeout_s)
    _follow(sys.stdin.buffer, group, device_of(device, rank))
    leave_group(is_in_step=True)


def _follow(tasks: IO[bytes], group: TorchGroup, device: str) -> None:
    learner: Learner | None = None
    while (task := read_task(tasks)).name != END.name:
        if task.name == "make":
            learner = make_learner(spec_of(task.values), device=device, group=group)
        elif learner is None:
            raise ValueError(f"no learner yet for {task.name!r}")
        else:
            do_task(task, learner, group)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    # As the training itself ends: nothing is left to be done.
    os._exit(0)
