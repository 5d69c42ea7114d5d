"""The trajectory cache against real servers, also in cluster mode, as ElastiCache Serverless is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import CacheError, CacheMissError, CacheUnavailableError
from lambda_actor.inline import ACCEPTED, LATE
from tests.conftest import USERNAME, AuthServer, TcpServer, free_port
from tests.helpers import wait_for


@pytest.fixture
def other(server_url: str, run_id: str) -> Iterator[TrajectoryCache]:
    """The cache of another run whose name starts with this one's."""
    made = TrajectoryCache(server_url, run_id + "0")
    yield made
    made.remove_run()
    made.close()


def test_a_trajectory_is_taken_exactly_once_however_often_submitted(
    cache: TrajectoryCache, other: TrajectoryCache
) -> None:
    cache.expect(["a"])
    assert cache.is_wanted("a") and not other.is_wanted("a")
    assert cache.submit("a", b"sampled") == ACCEPTED
    assert cache.submit("a", b"sampled") == ACCEPTED, "the first try's answer was lost"
    assert cache.is_wanted("a"), "it has submitted, and is about to end"
    assert cache.take("a") == b"sampled"
    assert not cache.is_wanted("a")
    assert cache.submit("a", b"sampled") == LATE
    assert cache.take("a") is None


def fill(cache: TrajectoryCache) -> None:
    """Makes a key of every kind."""
    cache.publish_weights(1, b"w")
    cache.publish_episodes({"e": b"e"})
    cache.expect(["a", "b"])
    cache.submit("a", b"x")
    cache.submit("stranger", b"z")


def test_nothing_remains_of_a_run_and_nothing_is_missing_of_others(
    cache: TrajectoryCache, other: TrajectoryCache, raw: redis.Redis, run_id: str
) -> None:
    before = set(raw.scan_iter())
    fill(cache)
    keys = set(raw.scan_iter()) - before
    names = ("weights:1", "episode:e", "trajectory:a", "trajectory:b")
    assert keys == {f"{{{run_id}}}:{name}".encode() for name in names}
    assert all(0 < raw.ttl(key) <= 3600 for key in keys)
    fill(other)
    cache.remove_run()
    assert other.fetch_weights(1) == b"w"
    assert other.take("a") == b"x"
    assert not keys & set(raw.scan_iter())


@pytest.mark.parametrize("user", ["", "nobody", USERNAME])
def test_a_wrong_password_is_refused_without_being_shown(
    tcp_server_with_auth: AuthServer, run_id: str, user: str
) -> None:
    url = tcp_server_with_auth.url.replace("redis://", f"redis://{user}:wr0ng-secret@")
    cache = TrajectoryCache(url, run_id, connect_attempts=0)
    with pytest.raises(CacheError, match=f"127.0.0.1:{tcp_server_with_auth.port}") as caught:
        cache.ping()
    error: BaseException | None = caught.value
    while error is not None:
        # Everything that a traceback or a log could show.
        assert "wr0ng-secret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    cache.close()


def test_a_server_that_restarts_between_two_commands_is_met_again(
    tcp_server: TcpServer, run_id: str
) -> None:
    cache = TrajectoryCache(f"redis://127.0.0.1:{tcp_server.port}", run_id)
    cache.publish_weights(1, b"w")
    cache.expect(["a"])
    tcp_server.stop()
    tcp_server.start()
    with pytest.raises(CacheMissError):
        cache.fetch_weights(1)
    assert cache.submit("a", b"x") == LATE, "the new server does not know the round"
    cache.close()


def test_all_commands_stay_within_one_slot_of_a_cluster(tmp_path: Path) -> None:
    # By default its bus would listen 10,000 ports higher, which may not exist.
    server = TcpServer(tmp_path, "cluster-enabled yes", f"cluster-port {free_port()}")
    server.start()
    client = redis.Redis(port=server.port)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_for(
        lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"),
        "the cluster to be ready",
    )
    cache = TrajectoryCache(f"redis://127.0.0.1:{server.port}", "run-1")
    fill(cache)
    assert cache.is_wanted("b")
    assert (cache.fetch_weights(1), cache.fetch_episode("e")) == (b"w", b"e")
    assert cache.take("a") == b"x"
    cache.discard_episodes(["e", "f"])
    cache.forget_weights(1)
    cache.remove_run()
    assert client.keys() == []
    cache.close()
    client.close()
    server.stop()


def test_a_server_that_hangs_is_not_asked_for_each_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and answers nothing, like a stopped process."""
    now_s = [100.0]
    monkeypatch.setattr("lambda_actor.cache.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}?socket_timeout=0.1"
        cache = TrajectoryCache(url, "run-1", connect_attempts=1)
        with pytest.raises(CacheUnavailableError, match="does not answer: Timeout"):
            cache.take("a")
        with pytest.raises(CacheUnavailableError, match="has just not answered"):
            cache.take("b")
        now_s[0] += 11.0
        with pytest.raises(CacheUnavailableError, match="does not answer: Timeout"):
            cache.take("c")
        cache.close()
