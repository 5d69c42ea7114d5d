"""Damage that a user's server, or another client of it, can do to a run."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from runtime.fleet.cache_server import EmbeddedServer
from tests.helpers import (
    PATIENCE_S,
    ROOT,
    command,
    events,
    overrides,
    results_only,
    rounds,
    wait_for,
)


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
    server: EmbeddedServer, experiment: Path, out: Path, meddle
) -> subprocess.CompletedProcess[str]:
    """Trains while another thread calls ``meddle`` once, after the first round."""
    process = subprocess.Popen(
        command("train", str(experiment), "--out", str(out), *overrides(cache__url=server.url)),
        cwd=ROOT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def watch() -> None:
        wait_for(
            lambda: (out / "rounds.jsonl").exists() or process.poll() is not None, "the first round"
        )
        meddle()

    thread = threading.Thread(target=watch)
    thread.start()
    output, errors = process.communicate(timeout=PATIENCE_S)
    thread.join()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_a_users_server_gives_the_same_rounds_despite_garbage_and_keeps_nothing(
    server: EmbeddedServer, raw: redis.Redis, experiment: Path, reference: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    raw.set("mine", "stays")

    def push() -> None:
        run_id = events(out, "run_started")[0]["run_id"]
        raw.lpush(f"{{{run_id}}}:ready", b"\xff\xfe", b"nobody", b"r1t0-0-0")

    finished = train_beside(server, experiment, out, push)
    assert finished.returncode == 0, finished.stderr
    assert results_only(rounds(out)) == results_only(rounds(reference))
    assert raw.keys() == [b"mine"]


def test_a_server_that_forgets_everything_costs_time_only(
    server: EmbeddedServer, raw: redis.Redis, experiment: Path, reference: Path, tmp_path: Path
) -> None:
    finished = train_beside(server, experiment, tmp_path / "run", raw.flushall)
    assert finished.returncode == 0, finished.stderr
    ignored = {"actors_failed", "actors_late", "actors_billed", "lost_steps"}
    found, expected = (
        [
            {key: value for key, value in row.items() if key not in ignored}
            for row in results_only(rounds(out))
        ]
        for out in (tmp_path / "run", reference)
    )
    assert found == expected
