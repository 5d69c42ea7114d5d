"""ElastiCache Serverless is a cluster behind one address: all commands of the cache stay within one slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lambda_actor.cache import TrajectoryCache, stop_digest
from lambda_actor.inline import ACCEPTED, LATE
from tests.conftest import TcpServer, free_port, wait_until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[redis.Redis]:
    """A server in cluster mode that has all slots, and a plain client of it."""
    # By default its bus would listen 10,000 ports higher, which may not exist.
    server = TcpServer(tmp_path, "cluster-enabled yes", f"cluster-port {free_port()}")
    server.start()
    client = redis.Redis(port=server.port)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(
        lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"),
        "the cluster to be ready",
    )
    yield client
    client.close()
    server.stop()


def test_a_whole_round(cluster: redis.Redis) -> None:
    port = cluster.connection_pool.connection_kwargs["port"]
    cache = TrajectoryCache(f"redis://127.0.0.1:{port}", "run-1", digest=stop_digest("word"))
    cache.ping()
    cache.publish_weights(0, b"weights")
    cache.publish_episodes({"1-0": b"episode", "1-1": b"another"})
    cache.expect(["a", "b", "c"])
    assert cache.is_wanted("a")
    assert cache.fetch_weights(0) == b"weights"
    assert cache.fetch_episode("1-0") == b"episode"
    assert cache.submit("a", b"trajectory") == ACCEPTED
    assert cache.take("a") == b"trajectory"
    assert cache.take("c") is None
    assert cache.submit("c", b"too late") == LATE
    cache.discard_episodes(["1-0", "1-1"])
    cache.forget_weights(0)
    cache.stop("word")
    assert not cache.is_wanted("b")
    cache.remove_run()
    assert cluster.keys() == []
    cache.close()
