"""The actor function against a real server, and an episode that crosses processes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lambda_actor import handler as actor
from lambda_actor import inline as inline_messages
from lambda_actor import rollout, wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import (
    CacheUnavailableError,
    OversizedMessageError,
    RaisingEnvironmentError,
)
from lambda_actor.handler import handler
from lambda_actor.inline import from_text, to_text
from tests.conftest import USER_PASSWORD, USERNAME, AuthServer, TcpServer
from tests.environments import policy_arrays
from tests.helpers import PATIENCE_S

COUNTER, ENDLESS = "tests.environments:make_counter", "tests.environments:make_endless"
VERSION = 3


@pytest.fixture
def event(server_url: str, run_id: str, cache: TrajectoryCache) -> dict[str, Any]:
    """An event of a warm round; the weights are there and the invocation is expected."""
    cache.publish_weights(VERSION, weights())
    cache.expect(["r1-0-0"])
    return make_event(server_url, run_id)


def make_event(url: str, run_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "invocation_id": "r1-0-0",
        "cache_url": url,
        "cache_credential": "",
        "cache_ttl_s": 600,
        "environment_id": COUNTER,
        "preprocessing": "auto",
        "truncate_at_fragment": False,
        "fragment_steps": 25,
        "policy_version": VERSION,
        "seed": 11,
        "round_index": 1,
        "slot": 0,
        "episode_id": "",
        **changes,
    }


def weights(observation_size: int = 2, action_size: int = 1, **options: Any) -> bytes:
    return wire.encode(
        wire.Kind.WEIGHTS,
        policy_arrays(observation_size, action_size, **{"policy_version": VERSION, **options}),
    )


def taken(cache: TrajectoryCache, invocation_id: str = "r1-0-0") -> dict[str, np.ndarray]:
    return wire.decode(cache.take(invocation_id), wire.Kind.TRAJECTORY)


# One invocation


def test_without_a_cache_the_same_trajectory_is_in_the_response_if_it_fits(
    event: dict[str, Any], cache: TrajectoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler(event, None)
    inline = {**event, "cache_url": "", "weights": to_text(weights()), "episode": ""}
    answer = handler(inline, None)
    assert json.loads(json.dumps(answer))["status"] == "accepted"
    assert from_text(answer["trajectory"]) == cache.take("r1-0-0")
    monkeypatch.setattr(inline_messages, "PAYLOAD_BYTES_MAX", 5000)
    with pytest.raises(OversizedMessageError, match="does not fit into a response of 5000"):
        handler(inline, None)


def test_credentials_come_from_the_environment_variables(
    tcp_server_with_auth: AuthServer, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TrajectoryCache(tcp_server_with_auth.default_url, run_id)
    cache.publish_weights(VERSION, weights())
    cache.expect(["r1-0-0"])
    monkeypatch.setenv("ACTOR_CACHE_USERNAME", USERNAME)
    monkeypatch.setenv("ACTOR_CACHE_PASSWORD", USER_PASSWORD)
    assert handler(make_event(tcp_server_with_auth.url, run_id), None)["status"] == "accepted"
    cache.remove_run()
    cache.close()


# State that stays warm


def test_a_warm_actor_notices_what_is_new() -> None:
    def played(message: bytes, **changes: Any) -> dict[str, np.ndarray]:
        event = make_event("", "run", weights=to_text(message), episode="")
        answer = handler(event | changes, None)
        return wire.decode(from_text(answer["trajectory"]), wire.Kind.TRAJECTORY)

    first = played(weights())
    newer = played(weights(policy_version=VERSION + 1, seed=8), policy_version=VERSION + 1)
    other = played(weights(seed=9), run_id="another", environment_id=ENDLESS)
    np.testing.assert_array_equal(first["observations"][0], newer["observations"][0])
    assert len({one["actions"][0, 0] for one in (first, newer, other)}) == 3
    assert first["terminated"].any() and not other["terminated"].any()


def test_a_warm_actor_closes_what_raised_and_what_it_no_longer_plays(tmp_path: Path) -> None:
    kwargs = {"kind": "Licence", "folder": str(tmp_path), "raises_at": 3}
    changes = {"replay": "reset", "weights": to_text(weights()), "episode": ""}
    event = make_event("", "r", **changes, environment_id="tests.cases.simulators:make")
    event["environment_options"] = {"kwargs": kwargs}

    def found() -> tuple[int, int]:
        return len([*tmp_path.glob("taken-*")]), len([*tmp_path.glob("returned-*")])

    with pytest.raises(RaisingEnvironmentError):
        handler(event, None)
    handler(event, None)
    assert found() == (1, 1)
    handler({**event, "environment_id": COUNTER, "environment_options": {}}, None)
    assert found() == (0, 2)


@pytest.mark.parametrize(
    ("gone", "error"), [("its key", InterruptedError), ("the server", CacheUnavailableError)]
)
def test_an_actor_that_nobody_waits_for_or_that_cannot_ask_gives_up(
    tcp_server: TcpServer,
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
    error: type[Exception],
) -> None:
    url = f"redis://127.0.0.1:{tcp_server.port}"
    earlier, learner = (TrajectoryCache(url, name) for name in ("earlier", "run"))
    for cache in (earlier, learner):
        cache.publish_weights(VERSION, weights())
        cache.expect(["r1-0-0"])
    handler(make_event(url, "earlier"), None)
    # The clock is read when the fragment begins, and before and after each check.
    ticks = itertools.count(step=2)
    happens = {
        ("its key", 0): lambda: learner.take("r1-0-0"),
        ("the server", 0): tcp_server.stop,
        ("the server", 4): tcp_server.start,
    }

    def monotonic() -> float:
        now_s = next(ticks)
        happens.get((gone, now_s), bool)()
        return float(now_s)

    monkeypatch.setattr(rollout, "time", SimpleNamespace(monotonic=monotonic))
    with pytest.raises(error):
        handler(make_event(url, "run", fragment_steps=10_000), None)
    for cache in (earlier, learner):
        cache.close()


# Across processes


def test_an_episode_goes_on_in_another_process_that_has_only_the_package_bit_for_bit(
    event: dict[str, Any], cache: TrajectoryCache, tmp_path: Path
) -> None:
    """As in Lambda, the package is on the path, and nothing else of this repository."""
    root = Path(actor.__file__).resolve().parents[1]
    (tmp_path / "lambda_actor").symlink_to(root / "lambda_actor")
    # With so small a σ, the noise, which differs between fragments, does not change one bit of an action.
    policy = weights(3, 1, hidden=64, gain=0.15, log_std=-100.0, seed=5)
    cache.publish_weights(VERSION, policy)
    code = (
        "import json, sys; from lambda_actor.handler import handler; "
        "print(json.dumps(handler(json.load(sys.stdin), None)))"
    )

    def played(steps: int, **changes: Any) -> dict[str, np.ndarray]:
        cache.expect(["r1-0-0"])
        asked = {**event, "environment_id": "Pendulum-v1", "fragment_steps": steps, **changes}
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(asked),
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == "accepted"
        return taken(cache)

    whole, head = played(16), played(8)
    cache.publish_episodes({"1-0": head["open_episode"].tobytes()})
    tail = played(8, slot=1, episode_id="1-0")
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        assert np.concatenate([head[name], tail[name]]).tobytes() == whole[name].tobytes(), name
    assert wire.field_text(tail["continued_episode"]) == "1-0"
