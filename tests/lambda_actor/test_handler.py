"""The actor function against a real server, and an episode that crosses processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lambda_actor import handler as actor
from lambda_actor import inline as inline_messages
from lambda_actor import rollout, wire
from lambda_actor.cache import TrajectoryCache
from lambda_actor.errors import (
    CacheMissError,
    CacheUnavailableError,
    OversizedMessageError,
    RaisingEnvironmentError,
    UnusableEnvironmentError,
)
from lambda_actor.handler import handler
from lambda_actor.inline import from_text, to_text
from lambda_actor.rollout import OpenEpisode
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.fleet.local import LocalFleet
from tests import environments as helpers
from tests.conftest import PASSWORD, USER_PASSWORD, USERNAME, AuthServer
from tests.environments import FAULT_STEP, policy_arrays
from tests.helpers import PATIENCE_S

COUNTER, ENDLESS = "tests.environments:make_counter", "tests.environments:make_endless"
MUJOCO_IDS = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]
SIZES = {
    "Hopper-v5": (11, 3),
    "Walker2d-v5": (17, 6),
    "HalfCheetah-v5": (17, 6),
    "Ant-v5": (105, 8),
    "Humanoid-v5": (348, 17),
}
VERSION = 3


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cold actor for each test."""
    fresh = actor.Sandbox()
    monkeypatch.setattr(actor, "sandbox", fresh)
    monkeypatch.delenv("ACTOR_CACHE_USERNAME", raising=False)
    monkeypatch.delenv("ACTOR_CACHE_PASSWORD", raising=False)
    yield fresh
    if fresh.cache is not None:
        fresh.cache.close()


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
        "stop_digest": "",
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


def test_without_a_cache_the_same_trajectory_is_in_the_response(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    handler({**event, "fragment_steps": 6}, None)
    cached = cache.take("r1-0-0")
    inline = {
        **event,
        "cache_url": "",
        "weights": to_text(weights()),
        "episode": "",
        "fragment_steps": 6,
    }
    answer = handler(inline, None)
    assert json.loads(json.dumps(answer)) == answer
    assert from_text(answer["trajectory"]) == cached
    assert answer["status"] == "accepted"


def test_without_a_cache_what_no_response_can_hold_is_refused(
    event: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_messages, "PAYLOAD_BYTES_MAX", 5000)
    inline = {**event, "cache_url": "", "weights": to_text(weights()), "episode": ""}
    with pytest.raises(OversizedMessageError, match="does not fit into a response of 5000"):
        handler(inline, None)


def test_an_answer_nobody_waits_for_is_late(event: dict[str, Any], cache: TrajectoryCache) -> None:
    cache.take("r1-0-0")
    assert handler(event, None)["status"] == "late"
    assert cache.take("r1-0-0") is None


def test_a_replacement_brings_back_the_same_trajectory(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    handler(event, None)
    actor.sandbox.environments, actor.sandbox.policy = [], None
    cache.expect(["another-id"])
    handler({**event, "invocation_id": "another-id"}, None)
    first, second = taken(cache), taken(cache, "another-id")
    assert wire.field_text(first.pop("invocation_id")) != wire.field_text(
        second.pop("invocation_id")
    )
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name, strict=True)


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
    assert PASSWORD != USER_PASSWORD


# State that stays warm


def test_a_warm_actor_reuses_what_it_can(
    event: dict[str, Any], cache: TrajectoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler(event, None)
    (environment,), policy, connection = (
        getattr(actor.sandbox, name) for name in ("environments", "policy", "cache")
    )
    handler({**event, "slot": 1}, None)
    assert actor.sandbox.environments[0] is environment
    assert actor.sandbox.policy is policy
    assert actor.sandbox.cache is connection


def test_a_warm_actor_notices_what_is_new(
    event: dict[str, Any], cache: TrajectoryCache, server_url: str
) -> None:
    handler(event, None)
    cache.publish_weights(VERSION + 1, weights(policy_version=VERSION + 1, seed=8))
    cache.expect(["r2-0-0"])
    handler({**event, "policy_version": VERSION + 1, "invocation_id": "r2-0-0"}, None)
    first, second = taken(cache), taken(cache, "r2-0-0")
    np.testing.assert_array_equal(first["observations"][0], second["observations"][0])
    assert first["actions"][0] != second["actions"][0]
    another = TrajectoryCache(server_url, f"{event['run_id']}-another")
    another.publish_weights(VERSION, weights(seed=9))
    another.expect(["r1-0-0"])
    handler({**event, "run_id": f"{event['run_id']}-another", "environment_id": ENDLESS}, None)
    third = taken(another)
    assert not third["terminated"].any()
    assert third["actions"][0] not in (first["actions"][0], second["actions"][0])
    another.remove_run()
    another.close()


def test_an_environment_that_raised_is_not_used_again(
    event: dict[str, Any], cache: TrajectoryCache
) -> None:
    helpers.flaky_built.clear()
    flaky = {**event, "environment_id": "tests.environments:make_flaky"}
    assert handler({**flaky, "fragment_steps": FAULT_STEP}, None)["status"] == "accepted"
    with pytest.raises(
        RaisingEnvironmentError, match="make_flaky raised RuntimeError: the motor is on fire, in /"
    ):
        handler(flaky, None)
    assert len(helpers.flaky_built) == 1, "kept until it raised"
    assert [handler(flaky, None)["status"] for _ in range(2)] == ["accepted", "accepted"]
    assert len(helpers.flaky_built) == 2, "rebuilt once, then kept"


def test_an_actor_that_nobody_waits_for_gives_up(
    event: dict[str, Any], cache: TrajectoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**9))
    monkeypatch.setattr(
        rollout, "time", type("Clock", (), {"monotonic": lambda: float(2 * next(ticks))})
    )
    cache.take(event["invocation_id"])
    with pytest.raises(InterruptedError):
        handler({**event, "fragment_steps": 10_000}, None)
    assert cache.take(event["invocation_id"]) is None


# Before the first round


def test_a_prewarm_event_proves_the_environment_and_the_cache(
    server_url: str, run_id: str, cache: TrajectoryCache, sandbox: Any
) -> None:
    prewarmed = make_event(server_url, run_id, prewarm=True)
    assert handler(prewarmed, None) == {"invocation_id": "r1-0-0", "status": "prewarmed"}
    assert [one.environment_id for one in sandbox.environments] == [COUNTER]
    assert sandbox.cache is not None


# Failures


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"policy_version": 77}, CacheMissError, "weights:77"),
        ({"episode_id": "gone"}, CacheMissError, "episode:gone"),
        ({"environment_id": "NoSuch-v0"}, UnusableEnvironmentError, "NoSuch-v0"),
        (
            {"environment_id": "tests.environments:make_raising"},
            RaisingEnvironmentError,
            "the motor is on fire",
        ),
        ({"cache_url": "http://nowhere"}, CacheUnavailableError, "http://nowhere"),
    ],
)
def test_what_goes_wrong_is_named_and_nothing_is_submitted(
    event: dict[str, Any],
    cache: TrajectoryCache,
    changes: dict[str, Any],
    error: type[Exception],
    named: str,
) -> None:
    with pytest.raises(error, match=named):
        handler({**event, **changes}, None)
    assert cache.take("r1-0-0") is None
    cache.expect(["r1-0-0"])
    assert handler(event, None)["status"] == "accepted", "the next invocation is not harmed"


def test_what_an_environment_prints_is_cut(
    event: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    handler({**event, "environment_id": "tests.environments:make_talkative"}, None)
    captured = capsys.readouterr()
    assert len(captured.out) == 2000
    assert captured.err == "\n3000 more characters were printed and dropped\n"


# Pixels


# Across processes

CUT_STEPS = 8
DETERMINISTIC = -100.0
"""log σ so small that the noise, which differs between fragments, does not change one bit of an action."""


def run_in_a_new_process(events: Sequence[dict[str, Any]], log_path: Path) -> None:
    """Runs these events in order in one actor process, which then ends."""
    fleet = LocalFleet(
        FleetSetup(concurrency=1, timeout_s=PATIENCE_S, memory_mib=1769, log_path=log_path)
    )
    try:
        fleet.start([Invocation(event["invocation_id"], event) for event in events])
        outcomes = []
        while len(outcomes) < len(events):
            found = fleet.wait(PATIENCE_S)
            assert found, "the fleet reported nothing"
            outcomes += found
    finally:
        fleet.close()
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [("ok", "")] * len(
        events
    ), log_path.read_text()


@pytest.fixture(scope="module")
def cut_and_uncut(
    server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[list[dict[str, np.ndarray]], dict[str, np.ndarray]]]]:
    """By environment: the trajectories of three fragments in three processes, and of one equally long fragment."""
    log_path = tmp_path_factory.mktemp("fleet") / "actors.log"
    caches = {
        name: TrajectoryCache(server_url, f"cut-{name.partition('-')[0]}") for name in MUJOCO_IDS
    }
    episodes = dict.fromkeys(MUJOCO_IDS, "")
    parts: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in MUJOCO_IDS}
    uncut = {}

    def event(name: str, invocation_id: str, **changes: Any) -> dict[str, Any]:
        caches[name].expect([invocation_id])
        return make_event(
            server_url,
            f"cut-{name.partition('-')[0]}",
            invocation_id=invocation_id,
            environment_id=name,
            fragment_steps=CUT_STEPS,
            **changes,
        )

    for name, cache in caches.items():
        cache.publish_weights(
            VERSION, weights(*SIZES[name], hidden=64, gain=0.15, log_std=DETERMINISTIC, seed=5)
        )
    for number in range(3):
        events = []
        for name in MUJOCO_IDS:
            # Each process first plays something else in this environment, so that it is not fresh.
            events.append(event(name, f"dirt-{number}", slot=50 + number))
            # Slots and noise streams differ, because another actor continues the episode.
            events.append(
                event(
                    name,
                    f"part-{number}",
                    slot=number,
                    round_index=1 + number,
                    episode_id=episodes[name],
                )
            )
        if number == 2:
            events += [
                {**event(name, "whole"), "fragment_steps": 3 * CUT_STEPS} for name in MUJOCO_IDS
            ]
        run_in_a_new_process(events, log_path)
        for name, cache in caches.items():
            part = taken(cache, f"part-{number}")
            parts[name].append(part)
            uncut[name] = taken(cache, "whole") if number == 2 else None
            episodes[name] = f"episode-{number}"
            cache.publish_episodes({episodes[name]: part["open_episode"].tobytes()})
    yield {name: (parts[name], uncut[name]) for name in MUJOCO_IDS}
    for cache in caches.values():
        cache.remove_run()
        cache.close()


@pytest.mark.parametrize("environment_id", MUJOCO_IDS)
def test_an_episode_cut_over_three_processes_is_the_uncut_one_bit_for_bit(
    cut_and_uncut: dict, environment_id: str
) -> None:
    parts, uncut = cut_and_uncut[environment_id]
    assert not (uncut["terminated"] | uncut["truncated"]).any(), "this test needs one open episode"
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        joined = np.concatenate([part[name] for part in parts])
        assert joined.tobytes() == uncut[name].tobytes(), name
    assert parts[2]["bootstrap_observations"].tobytes() == uncut["bootstrap_observations"].tobytes()
    cut_end, uncut_end = (
        OpenEpisode.from_bytes(end["open_episode"].tobytes()) for end in (parts[2], uncut)
    )
    assert (cut_end.length, cut_end.return_so_far) == (uncut_end.length, uncut_end.return_so_far)
    assert cut_end.length == 3 * CUT_STEPS
    for name, value in uncut_end.state.items():
        assert cut_end.state[name].tobytes() == value.tobytes(), name


def test_the_handler_runs_from_the_command_line_of_an_empty_folder(
    event: dict[str, Any], cache: TrajectoryCache, tmp_path: Path
) -> None:
    """As in Lambda, the package is on the path, and nothing else of this repository."""
    root = Path(actor.__file__).resolve().parents[1]
    (tmp_path / "lambda_actor").symlink_to(root / "lambda_actor")
    cache.publish_weights(VERSION, weights(*SIZES["Hopper-v5"]))
    code = (
        "import json, sys; from lambda_actor.handler import handler; "
        "print(json.dumps(handler(json.load(sys.stdin), None)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({**event, "environment_id": "Hopper-v5"}),
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "accepted"
    assert taken(cache)["observations"].shape == (25, 11)
