"""The cache users' rights on a real server: enough for each user's work, and not one command or key more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

from lambda_actor.cache import ACTOR_RIGHTS, LEARNER_RIGHTS, TrajectoryCache
from lambda_actor.errors import CacheError
from tests.conftest import TcpServer

RIGHTS = {"learner": LEARNER_RIGHTS, "actor": ACTOR_RIGHTS}
GRANTS = [
    (user, word)
    for user, rights in RIGHTS.items()
    for word in rights.split()[1:]
    if word != "-@all"
]
REDIS_6 = re.compile(r"on( ~[^ %()]+)+ -@all( \+[a-z]+)+")
"""What the rights may consist of: patterns of keys, and whole commands."""

Use = Callable[..., list]


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    server = TcpServer(tmp_path_factory.mktemp("server"))
    server.start()
    with closing(redis.Redis(port=server.port)) as client:
        yield client
    server.stop()


@pytest.fixture
def url(admin: redis.Redis) -> Callable[[str], str]:
    """Returns the server's URL for a user. Both users have the deployed rights."""
    admin.flushall()
    for user, rights in RIGHTS.items():
        admin.execute_command("ACL", "SETUSER", user, "reset", ">word", *rights.split())
    admin.execute_command("ACL", "LOG", "RESET")
    return lambda user: (
        f"redis://{user}:word@127.0.0.1:{admin.connection_pool.connection_kwargs['port']}"
    )


def use_everything(url: Callable[[str], str]) -> None:
    """Calls every public method of the client as its user would."""
    with (
        closing(TrajectoryCache(url("learner"), "run")) as learner,
        closing(TrajectoryCache(url("actor"), "run")) as actor,
    ):
        for cache in (learner, actor):
            cache.ping()
        learner.publish_weights(1, b"weights")
        assert actor.fetch_weights(1) == b"weights"
        learner.forget_weights(1)
        learner.publish_episodes({"e": b"episode"})
        assert actor.fetch_episode("e") == b"episode"
        learner.discard_episodes(["e"])
        learner.expect(["a", "b"])
        assert actor.is_wanted("a")
        assert [actor.submit(name, b"fragment") for name in ("a", "a", "z")] == [
            "accepted",
            "accepted",
            "late",
        ]
        assert learner.take("a") == b"fragment"
        learner.remove_run()
        assert not actor.is_wanted("b")


def test_the_rights_are_enough(admin: redis.Redis, url: Callable[[str], str]) -> None:
    use_everything(url)
    assert admin.execute_command("ACL", "LOG") == []


@pytest.mark.parametrize(("user", "word"), GRANTS)
def test_each_right_is_needed(
    admin: redis.Redis, url: Callable[[str], str], user: str, word: str
) -> None:
    admin.execute_command(
        "ACL",
        "SETUSER",
        user,
        "reset",
        ">word",
        *(one for one in RIGHTS[user].split() if one != word),
    )
    with pytest.raises(CacheError):
        use_everything(url)


@pytest.mark.parametrize(
    "command",
    [
        "DEL {run}:weights:1",
        "SET other poison",
        "GET {run}:object:a",
        "SET {run}:object:a poison",
        "DEL {run}:trajectory:a",
        "EXPIRE {run}:trajectory:a 0",
        "RENAME {run}:trajectory:a b",
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "DBSIZE",
        "FLUSHALL",
        "EVAL return 0",
        "SCRIPT LOAD x",
        "FUNCTION LIST",
        "SUBSCRIBE x",
        "PUBLISH x y",
        "CLIENT LIST",
        "CLIENT KILL ID 1",
        "CONFIG GET *",
        "ACL LIST",
        "MONITOR",
        "INFO",
        "WATCH {run}:trajectory:a",
        "MULTI",
        "SHUTDOWN NOSAVE",
        "OBJECT ENCODING {run}:trajectory:a",
        "SELECT 1",
    ],
)
def test_an_actor_may_do_nothing_else(
    admin: redis.Redis, url: Callable[[str], str], command: str
) -> None:
    with (
        closing(redis.Redis.from_url(url("actor"))) as actor,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        actor.execute_command(*command.split())


def test_what_a_hostile_actor_stores_costs_the_learner_nothing(
    admin: redis.Redis, url: Callable[[str], str]
) -> None:
    with (
        closing(TrajectoryCache(url("learner"), "run")) as learner,
        closing(redis.Redis.from_url(url("actor"))) as actor,
    ):
        learner.expect(["a"])
        for number in range(200):
            actor.set(f"{{run}}:trajectory:junk-{number}", b"x" * 10**5)
        actor.set("{run}:trajectory:a", b"sound")
        sent = admin.info("stats")["total_net_output_bytes"]
        assert learner.take("a") == b"sound"
        assert admin.info("stats")["total_net_output_bytes"] - sent < 10**5


@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS)
def test_redis_6_understands_the_rights(rights: str) -> None:
    """ElastiCache documents no other access strings. Redis 6.2.14 agrees with the rule below on all that it refuses."""
    assert REDIS_6.fullmatch(rights)
    assert not REDIS_6.fullmatch(rights.replace(" ~", " %R~", 1)), (
        "key permissions came with Redis 7"
    )
    assert not REDIS_6.fullmatch(f"{rights} (~x +get)"), "selectors came with Redis 7"
