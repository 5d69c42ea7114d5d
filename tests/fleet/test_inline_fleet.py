"""Actors without a cache: the request carries their input, and the response their result."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from lambda_actor import wire
from lambda_actor.inline import LATE
from runtime.fleet import FleetSetup
from runtime.fleet.inline import InlineFleet
from runtime.fleet.interfaces import Invocation
from runtime.fleet.local import LocalFleet
from runtime.money.work import Outcome
from tests.environments import EPISODE_STEPS
from tests.fleet.fleet_actors import weights
from tests.helpers import wait_for

VERSION = 1


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    made = LocalFleet(
        FleetSetup(
            concurrency=1,
            timeout_s=60.0,
            memory_mib=1769,
            log_path=tmp_path_factory.mktemp("fleet") / "actors.log",
        )
    )
    yield made
    made.close()


@pytest.fixture
def fleet(local: LocalFleet) -> InlineFleet:
    made = InlineFleet(local)
    made.publish_weights(VERSION, weights(2, 1))
    return made


def invocation(invocation_id: str, **changes: Any) -> Invocation:
    return Invocation(
        invocation_id,
        {
            "run_id": uuid.uuid4().hex,
            "invocation_id": invocation_id,
            "cache_url": "",
            "cache_credential": "",
            "cache_ttl_s": 600,
            "stop_digest": "",
            "environment_id": "tests.environments:make_counter",
            "preprocessing": "auto",
            "truncate_at_fragment": False,
            "fragment_steps": 6,
            "policy_version": VERSION,
            "seed": 11,
            "round_index": 1,
            "slot": 0,
            "episode_id": "",
            **changes,
        },
    )


def play(fleet: InlineFleet, one: Invocation) -> Outcome:
    fleet.expect([one.invocation_id])
    fleet.start([one])
    found: list[Outcome] = []
    wait_for(lambda: found.extend(fleet.wait(0.1)) or found, "the actor's end")
    return found[0]


def test_trajectories_and_episodes_travel_with_the_invocation(fleet: InlineFleet) -> None:
    outcome = play(fleet, invocation("a"))
    assert outcome.status == "ok", outcome.error
    assert "trajectory" not in outcome.response
    first = wire.decode(fleet.take("a"), wire.Kind.TRAJECTORY)
    assert fleet.take("a") is None, "each is taken once"
    fleet.publish_episodes({"e1": first["open_episode"].tobytes()})
    play(fleet, invocation("b", episode_id="e1", slot=1))
    second = wire.decode(fleet.take("b"), wire.Kind.TRAJECTORY)
    assert [*first["observations"][:, 0], *second["observations"][:4, 0]] == [*range(EPISODE_STEPS)]
    assert wire.field_text(second["continued_episode"]) == "e1"


def test_what_comes_after_its_door_was_closed_is_late(fleet: InlineFleet) -> None:
    one = invocation("a")
    fleet.expect(["a"])
    assert fleet.take("a") is None
    fleet.start([one])
    found: list[Outcome] = []
    wait_for(lambda: found.extend(fleet.wait(0.1)) or found, "the actor's end")
    assert found[0].response["status"] == LATE
    assert fleet.take("a") is None
