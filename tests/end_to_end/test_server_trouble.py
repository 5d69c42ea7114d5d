"""Damage that a user's server, or another client of it, can do to a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from runtime.fleet.cache_server import EmbeddedServer
from tests.end_to_end.test_crashes import finished_rounds, start
from tests.helpers import PATIENCE_S, events, overrides, results_only, rounds, wait_for


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    embedded = EmbeddedServer()
    yield embedded
    embedded.close()


@pytest.fixture
def raw(server: EmbeddedServer) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(server.url)
    yield client
    client.close()


def test_garbage_and_a_server_that_forgets_everything_cost_time_only_and_nothing_is_kept_there(
    server: EmbeddedServer, raw: redis.Redis, experiment: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start(experiment, out, *overrides(cache__url=server.url))

    def wait_for_rounds(count: int) -> None:
        wait_for(
            lambda: finished_rounds(out) >= count or process.poll() is not None, f"round {count}"
        )

    wait_for_rounds(1)
    run_id = events(out, "run_started")[0]["run_id"]
    raw.lpush(f"{{{run_id}}}:ready", b"\xff\xfe", b"nobody", b"r1t0-0-0")
    wait_for_rounds(2)
    raw.flushall()
    raw.set("mine", "stays")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    ignored = {"actors_failed", "actors_late", "actors_billed", "lost_steps"}
    found, expected = (
        [
            {key: value for key, value in row.items() if key not in ignored}
            for row in results_only(rounds(run))
        ]
        for run in (out, reference)
    )
    assert found == expected
    assert raw.keys() == [b"mine"]
