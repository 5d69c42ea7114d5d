"""Runs another program, such as a server, with its own directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_STOP_TIMEOUT_S = 5.0
# Ends the program when standard input ends. Only this process holds the other end, so it ends with this process,
# however that dies. The shell itself ends with the program.
_GUARDIAN = """
exec 3<&0
cd "$GUARDED_DIRECTORY"
"$@" 3<&- & program=$!
echo $program >pid
{
cat <&3 >/dev/null; touch ending
[ -e ended ] || eval "$GUARDED_FAREWELL" || kill -9 $program
rm -rf "$GUARDED_DIRECTORY"
} 2>/dev/null &
wait $program
[ -e ending ] || [ ! -d "$GUARDED_DIRECTORY" ] || touch ended
"""


class GuardedProgram:
    """A program under a guardian; the program and its directory are gone after `end`, or when this process ends."""

    def __init__(
        self, command: Sequence[str], directory: Path, log: IO[bytes], *, farewell: str = "false"
    ) -> None:
        """Starts it.

        Args:
            command: The program and its arguments.
            directory: Its working directory, which the guardian removes.
            log: File for its output.
            farewell: Shell command that ends the program cleanly, run in its directory; if it fails, the program is
                killed.

        Raises:
            OSError: The guardian cannot be started.
        """
        self._directory = directory
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "GUARDED_DIRECTORY": str(directory), "GUARDED_FAREWELL": farewell},
        )

    @property
    def is_alive(self) -> bool:
        return self._guardian.poll() is None

    def end(self) -> None:
        """Ends the program and removes its directory; idempotent."""
        if self._guardian.stdin and not self._guardian.stdin.closed:
            self._guardian.stdin.close()
        try:
            self._guardian.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Its other half was killed, so do its work here.
            with suppress(OSError, ValueError):
                os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)
            self._guardian.kill()
            self._guardian.wait()
        # Twice, because the guardian's other half may write its file while the directory is removed.
        for _ in range(2):
            shutil.rmtree(self._directory, ignore_errors=True)
