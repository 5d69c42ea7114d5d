"""The cache user's rights, on a real server: enough for all that the client does, and not one command more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import CacheError
from stacks.components.cache import ACCESS_STRING, COMMANDS
from tests.conftest import TcpServer

IGNORED_BY_THE_CLIENT = {"client|setinfo"}
"""The handshake goes on when it is refused; allowed, so that the server's log of refusals stays empty."""


@pytest.fixture(scope="module")
def as_user(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list]:
    """Does all that a run does as a user with that access string; returns what the server refused."""
    server = TcpServer(tmp_path_factory.mktemp("server"))
    server.start()
    admin = redis.Redis(port=server.port)

    def run(access_string: str) -> list:
        admin.flushall()
        admin.script_flush()
        admin.execute_command("ACL", "SETUSER", "user", "reset", ">word", *access_string.split())
        admin.execute_command("ACL", "LOG", "RESET")
        use_everything(f"redis://user:word@127.0.0.1:{server.port}")
        return admin.execute_command("ACL", "LOG")

    yield run
    admin.close()
    server.stop()


def use_everything(url: str) -> None:
    """Every public method of the client, each of its scripts' branches included."""
    cache = TrajectoryCache(url, "run")
    try:
        cache.ping()
        cache.publish_weights(1, b"weights")
        assert cache.fetch_weights(1) == b"weights"
        cache.forget_weights(1)
        cache.publish_episodes({"e": b"episode"})
        assert cache.fetch_episode("e") == b"episode"
        cache.discard_episodes(["e"])
        cache.expect(["a", "b", "c"])
        assert cache.is_wanted("a")
        assert [cache.submit(name, b"fragment") for name in ("a", "a", "z")] == ["accepted", "duplicate", "late"]
        assert cache.cancel("b")
        assert cache.take(60.0) == ("a", b"fragment")
        assert cache.submit("c", b"fragment") == "accepted"
        assert cache.forget(["c"]) == 1
        cache.stop()
        cache.remove_run()
    finally:
        cache.close()


def test_everything_here_is_every_method() -> None:
    source = Path(__file__).read_text()
    methods = [name for name in vars(TrajectoryCache) if not name.startswith("_")]
    assert "submit" in methods
    assert [name for name in methods if f"cache.{name}(" not in source] == []


def test_the_access_string_is_enough(as_user: Callable[[str], list]) -> None:
    assert as_user(ACCESS_STRING) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_needed(as_user: Callable[[str], list], command: str) -> None:
    without = " ".join(word for word in ACCESS_STRING.split() if word != f"+{command}")
    if command in IGNORED_BY_THE_CLIENT:
        assert as_user(without) != []
    else:
        with pytest.raises(CacheError):
            as_user(without)


def test_nothing_dangerous_is_in_it() -> None:
    assert ACCESS_STRING.split()[:3] == ["on", "~*", "-@all"]
    assert not any(word.startswith(("+@", "&", ">", "nopass")) for word in ACCESS_STRING.split())
