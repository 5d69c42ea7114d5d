"""NVIDIA's MPS for one run: a control daemon of its own, which ends with the run, however the run ends.

Follows NVIDIA's guide "Multi-Process Service" (docs.nvidia.com/deploy/mps). The daemon is started in the foreground
with ``-f``. ``quit`` on the standard input of the same program without options ends it and its servers; a killed daemon
leaves its servers behind. Programs find the daemon by the directory of its pipes, and no daemon starts where another
has its pipes. Tests use a program that follows the guide. The real one was tried on an H100.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from runtime.errors import RunError
from runtime.fleet.processes import GuardedProgram, socket_parent
from runtime.gmi.devices import MPS_PROGRAM, Gpu
from runtime.records.layout import MPS

START_TIMEOUT_S = 20.0
_FAREWELL = f'echo quit | CUDA_MPS_PIPE_DIRECTORY="$GUARDED_DIRECTORY" {MPS_PROGRAM}'
_OF_CLIENTS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
"""In a daemon's environment they would limit all its clients."""


class MpsError(RunError):
    """The MPS daemon cannot be started."""


class MpsDaemon:
    """A running MPS daemon. It ends with `close` or with this process.

    Attributes:
        variables: Environment variables of programs that use it.
    """

    def __init__(self, directory: Path, gpus: Sequence[Gpu]) -> None:
        """Starts the daemon and waits until it answers.

        Args:
            directory: The run's directory. Holds the pipes, unless their paths were too long, and the logs in ``mps``.
            gpus: GPUs to share; programs name them by UUID.

        Raises:
            MpsError: It does not start.
        """
        directory = directory.resolve()
        logs = directory / MPS
        logs.mkdir(parents=True, exist_ok=True)
        pipes = Path(tempfile.mkdtemp(prefix="mps-", dir=socket_parent(str(directory))))
        self.variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }
        log_path = logs / "daemon.log"
        own = {**self.variables, "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}
        try:
            with log_path.open("wb") as log:
                self._guarded = GuardedProgram(
                    [
                        "env",
                        *(word for name in _OF_CLIENTS for word in ("-u", name)),
                        *(f"{name}={value}" for name, value in own.items()),
                        MPS_PROGRAM,
                        "-f",
                    ],
                    pipes,
                    log,
                    farewell=_FAREWELL,
                )
        except BaseException:
            shutil.rmtree(pipes, ignore_errors=True)
            raise
        self._wait_until_ready(log_path)

    @property
    def is_alive(self) -> bool:
        return self._guarded.is_alive

    def close(self) -> None:
        """Ends the daemon and its servers, and removes its pipes. Keeps the logs. Idempotent."""
        self._guarded.end()

    def _wait_until_ready(self, log_path: Path) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline_s or not self.is_alive:
                words = log_path.read_text(errors="replace").strip().splitlines()[-5:]
                self.close()
                raise MpsError(
                    f"{MPS_PROGRAM} does not start; its last words: {' | '.join(words) or 'none'}; "
                    "learner.backend = none shares the GPUs without it"
                )
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return (
                subprocess.run(
                    [MPS_PROGRAM],
                    input=b"get_default_active_thread_percentage\n",
                    capture_output=True,
                    check=False,
                    timeout=START_TIMEOUT_S,
                    env={**os.environ, **self.variables},
                ).returncode
                == 0
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
