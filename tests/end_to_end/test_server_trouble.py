"""Damage that a user's server, or another client of it, can do to a run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from runtime.fleet.cache_server import EmbeddedServer
from tests.end_to_end.test_crashes import start
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


def train_beside(
    server: EmbeddedServer, experiment: Path, out: Path, meddle: Callable[[], object]
) -> None:
    """Trains, and calls ``meddle`` once after the first round."""
    process = start(experiment, out, *overrides(cache__url=server.url))
    wait_for(
        lambda: (out / "rounds.jsonl").exists() or process.poll() is not None, "the first round"
    )
    meddle()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors


def test_a_users_server_gives_the_same_rounds_despite_garbage_and_keeps_nothing(
    server: EmbeddedServer, raw: redis.Redis, experiment: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    raw.set("mine", "stays")

    def push() -> None:
        run_id = events(out, "run_started")[0]["run_id"]
        raw.lpush(f"{{{run_id}}}:ready", b"\xff\xfe", b"nobody", b"r1t0-0-0")

    train_beside(server, experiment, out, push)
    assert results_only(rounds(out)) == results_only(rounds(reference))
    assert raw.keys() == [b"mine"]


def test_a_server_that_forgets_everything_costs_time_only(
    server: EmbeddedServer, raw: redis.Redis, experiment: Path, reference: Path, tmp_path: Path
) -> None:
    train_beside(server, experiment, tmp_path / "run", raw.flushall)
    ignored = {"actors_failed", "actors_late", "actors_billed", "lost_steps"}
    found, expected = (
        [
            {key: value for key, value in row.items() if key not in ignored}
            for row in results_only(rounds(out))
        ]
        for out in (tmp_path / "run", reference)
    )
    assert found == expected
