"""The trajectory cache against real servers."""

from __future__ import annotations

import pytest
import redis

from lambda_actor.cache import TrajectoryCache, stop_digest
from lambda_actor.errors import (
    CacheError,
    CacheMissError,
)
from lambda_actor.inline import ACCEPTED, LATE
from tests.conftest import USERNAME, AuthServer, TcpServer


@pytest.fixture
def other(server_url: str, run_id: str):
    """The cache of another run whose name starts with this one's."""
    made = TrajectoryCache(server_url, run_id + "0")
    yield made
    made.remove_run()
    made.close()


def keys_of(raw: redis.Redis, run_id: str) -> set[str]:
    return {
        key.decode()
        for key in raw.scan_iter(count=1000)
        if key.decode().startswith(f"{{{run_id}}}:")
    }


# Each trajectory exactly once


def test_a_trajectory_is_taken_exactly_once_however_often_submitted(cache: TrajectoryCache) -> None:
    cache.expect(["a"])
    assert cache.submit("a", b"sampled again, and the same") == ACCEPTED
    assert cache.submit("a", b"sampled again, and the same") == ACCEPTED, (
        "the first try's answer was lost"
    )
    assert cache.take("a") == b"sampled again, and the same"
    assert cache.submit("a", b"sampled again, and the same") == LATE
    assert cache.take("a") is None


# Weights and episodes


def test_an_invocation_is_wanted_while_the_learner_waits_for_it(
    cache: TrajectoryCache, other: TrajectoryCache
) -> None:
    cache.expect(["a", "b"])
    assert cache.is_wanted("a")
    assert not other.is_wanted("a")
    cache.submit("b", b"x")
    assert cache.is_wanted("b"), "it has submitted, and is about to end"
    cache.take("a")
    assert not cache.is_wanted("a")


def test_once_the_run_is_stopped_none_of_its_actors_is_wanted(
    cache: TrajectoryCache, other: TrajectoryCache, server_url: str, run_id: str
) -> None:
    actor = TrajectoryCache(server_url, run_id, digest=stop_digest("word"))
    for one in (cache, other):
        one.expect(["a", "b"])
    assert actor.is_wanted("a")
    cache.stop("word")
    assert not actor.is_wanted("a")
    assert not actor.is_wanted("b")
    cache.expect(["c"])
    assert not actor.is_wanted("c"), "not even one that starts later"
    assert other.is_wanted("a")
    cache.stop("word")
    actor.close()


@pytest.mark.parametrize("said", ["", stop_digest("word"), "word" * 2**18])
def test_without_the_runs_word_nobody_is_stopped(
    cache: TrajectoryCache, server_url: str, run_id: str, said: str
) -> None:
    actor = TrajectoryCache(server_url, run_id, digest=stop_digest("word"))
    cache.expect(["a"])
    actor.stop(said)
    assert actor.is_wanted("a")
    actor.close()


# Keys left on the server


def fill(cache: TrajectoryCache) -> None:
    """Makes a key of every kind."""
    cache.publish_weights(1, b"w")
    cache.publish_episodes({"e": b"e"})
    cache.expect(["a", "b", "c"])
    cache.submit("a", b"x")
    cache.submit("b", b"y")
    cache.submit("stranger", b"z")
    cache.stop("word")


KEYS = {"weights:1", "episode:e", "trajectory:a", "trajectory:b", "trajectory:c", "stop"}


def test_nothing_remains_of_a_run_and_nothing_is_missing_of_others(
    cache: TrajectoryCache, other: TrajectoryCache, raw: redis.Redis, run_id: str
) -> None:
    fill(cache)
    fill(other)
    raw.set("somebody-elses", 1, ex=60)
    assert keys_of(raw, run_id) == {f"{{{run_id}}}:{name}" for name in KEYS}
    assert all(0 < raw.ttl(key) <= 3600 for key in keys_of(raw, run_id))
    before = {key for key in raw.scan_iter() if not key.startswith(f"{{{run_id}}}".encode())}
    cache.remove_run()
    assert set(raw.scan_iter()) == before
    assert other.fetch_weights(1) == b"w"
    assert other.take("a") == b"x"
    raw.delete("somebody-elses")


# Connections


def errors_text(error: BaseException | None) -> str:
    """Returns everything that a traceback or a log could show of ``error``."""
    parts = []
    while error is not None:
        parts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


def exercise(cache: TrajectoryCache) -> None:
    cache.ping()
    cache.publish_weights(1, b"w" * 100_000)
    assert cache.fetch_weights(1) == b"w" * 100_000
    cache.expect(["a"])
    assert cache.submit("a", b"x") == ACCEPTED
    assert cache.take("a") == b"x"
    cache.remove_run()
    cache.close()


@pytest.mark.parametrize(
    "credentials", ["", ":wr0ng-secret@", "nobody:wr0ng-secret@", f"{USERNAME}:wr0ng-secret@"]
)
def test_a_wrong_password_is_refused_without_being_shown(
    tcp_server_with_auth: AuthServer, run_id: str, credentials: str
) -> None:
    url = tcp_server_with_auth.url.replace("redis://", f"redis://{credentials}")
    cache = TrajectoryCache(url, run_id, connect_attempts=0)
    with pytest.raises(CacheError, match=f"127.0.0.1:{tcp_server_with_auth.port}") as caught:
        cache.ping()
    assert "wr0ng-secret" not in errors_text(caught.value)
    cache.close()


def test_a_server_that_restarts_between_two_commands_is_met_again(
    tcp_server: TcpServer, run_id: str
) -> None:
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id)
    cache.publish_weights(1, b"w")
    cache.expect(["a"])
    cache.submit("a", b"x")
    tcp_server.stop()
    tcp_server.start()
    with pytest.raises(CacheMissError):
        cache.fetch_weights(1)
    assert cache.submit("a", b"x") == LATE, "the new server does not know the round"
    exercise(cache)
