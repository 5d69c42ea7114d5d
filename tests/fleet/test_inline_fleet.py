"""Actors without a cache: the request carries their input, and the response their result."""

from __future__ import annotations

import pytest

from lambda_actor import wire
from lambda_actor.handler import handler
from lambda_actor.inline import LATE
from runtime.fleet.inline import InlineFleet
from runtime.fleet.interfaces import Invocation
from runtime.money.work import Outcome
from tests.environments import EPISODE_STEPS
from tests.fakes import OrderedFleet
from tests.fleet.fleet_actors import outcomes_of, weights


@pytest.fixture
def fleet() -> InlineFleet:
    made = InlineFleet(OrderedFleet(handler, lambda event: 1.0))
    made.publish_weights(1, weights(2, 1))
    return made


def play(fleet: InlineFleet, invocation_id: str, episode_id: str = "") -> Outcome:
    event = {
        "run_id": "run",
        "invocation_id": invocation_id,
        "cache_url": "",
        "environment_id": "tests.environments:make_counter",
        "preprocessing": "auto",
        "truncate_at_fragment": False,
        "fragment_steps": 6,
        "policy_version": 1,
        "seed": 11,
        "round_index": 1,
        "slot": 0,
        "episode_id": episode_id,
    }
    fleet.start([Invocation(invocation_id, event)])
    (outcome,) = outcomes_of(fleet, [invocation_id])
    return outcome


def test_trajectories_and_episodes_travel_with_the_invocation(fleet: InlineFleet) -> None:
    fleet.expect(["a", "b"])
    outcome = play(fleet, "a")
    assert outcome.status == "ok", outcome.error
    assert "trajectory" not in outcome.response
    first = wire.decode(fleet.take("a"), wire.Kind.TRAJECTORY)
    assert fleet.take("a") is None, "each is taken once"
    fleet.publish_episodes({"e1": first["open_episode"].tobytes()})
    play(fleet, "b", "e1")
    second = wire.decode(fleet.take("b"), wire.Kind.TRAJECTORY)
    assert [*first["observations"][:, 0], *second["observations"][:4, 0]] == [*range(EPISODE_STEPS)]
    assert wire.field_text(second["continued_episode"]) == "e1"


def test_what_comes_after_its_door_was_closed_is_late(fleet: InlineFleet) -> None:
    fleet.expect(["a"])
    assert fleet.take("a") is None
    assert play(fleet, "a").response["status"] == LATE
    assert fleet.take("a") is None
