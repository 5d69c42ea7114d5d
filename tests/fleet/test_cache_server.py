"""The embedded server: ready at once, closed to others, and gone with its owner, however the owner ends."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

import runtime.fleet.cache_server
from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import ActorError
from runtime.errors import ServerError
from runtime.fleet.cache_server import EmbeddedServer
from tests.fakes import FakeCache
from tests.helpers import ROOT, is_alive, wait_for


@pytest.fixture
def temporary(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Returns a short folder for the server's directory, because socket paths must be short."""
    # Otherwise pytest would put its own folders there.
    tmp_path_factory.getbasetemp()
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def process_of(url: str) -> int:
    with client_of(url) as client:
        return client.info("server")["process_id"]


# Life and death


def test_it_is_usable_at_once_by_its_user_alone_and_gone_after_close(temporary: Path):
    server = EmbeddedServer()
    with closing(TrajectoryCache(server.url, "run", connect_attempts=0)) as cache:
        cache.publish_weights(1, b"weights")
        assert cache.fetch_weights(1) == b"weights"
        process_id = process_of(server.url)
        assert is_alive(process_id)
        assert os.getsid(process_id) != os.getsid(0), "an interrupt at the terminal is not for it"
        socket_path = Path(server.url.removeprefix("unix://"))
        for path in (socket_path, socket_path.parent):
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        with client_of(server.url) as client:
            settings = client.config_get("*")
        kept = [settings[name] for name in ("port", "save", "appendonly", "maxmemory-policy")]
        assert kept == ["0", "", "no", "noeviction"]
        assert [socket_path.parent] == list(temporary.iterdir())
        server.close()
        server.close()
        assert not is_alive(process_id)
        assert list(temporary.iterdir()) == []
        with pytest.raises(ActorError):
            cache.ping()


OWNER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from runtime.fleet.cache_server import EmbeddedServer
server = EmbeddedServer()
print(server.url, flush=True)
input()
"""


def test_it_dies_with_its_owner_and_its_directory_with_it(temporary: Path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(temporary)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        process_id = process_of(owner.stdout.readline().strip())
        assert is_alive(process_id)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        wait_for(lambda: not is_alive(process_id), "the server to die with its owner")
        wait_for(lambda: list(temporary.iterdir()) == [], "its directory to be removed")
    finally:
        owner.kill()
        owner.communicate()


def test_a_program_that_never_answers_is_ended(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\nexec sleep 9000\n")
    program.chmod(0o700)
    monkeypatch.setattr(runtime.fleet.cache_server, "START_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ServerError, match="does not start"):
        EmbeddedServer()
    assert list(temporary.iterdir()) == []


# The fake cache of the unit tests


def test_the_fake_cache_answers_as_the_real_one(server_url: str):
    """Makes random calls whose ids and versions often collide."""
    draw = random.Random(0)
    real, fake = TrajectoryCache(server_url, f"fake-{uuid.uuid4().hex}"), FakeCache()
    calls = {
        "expect": lambda: ([draw.choice("abcd") for _ in range(draw.randint(0, 3))],),
        "submit": lambda: (draw.choice("abcde"), draw.randbytes(5)),
        "forget_weights": lambda: (draw.randint(1, 3),),
        "publish_weights": lambda: (draw.randint(1, 3), draw.randbytes(3)),
        "fetch_weights": lambda: (draw.randint(1, 3),),
        "publish_episodes": lambda: ({draw.choice("xyz"): draw.randbytes(3)},),
        "discard_episodes": lambda: ([draw.choice("xyz")],),
        "fetch_episode": lambda: (draw.choice("xyz"),),
        "take": lambda: (draw.choice("abcde"),),
    }
    seen = set()
    for name in draw.choices([*calls], weights=[4, 5, 1, 1, 1, 1, 1, 1, 2], k=400):
        arguments, answers = calls[name](), []
        for cache in (real, fake):
            try:
                answers.append(getattr(cache, name)(*arguments))
            except ActorError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1], (name, arguments)
        seen.add((name, str(answers[0])[:9]))
    assert len(seen) > 10
    real.remove_run()
    real.close()
