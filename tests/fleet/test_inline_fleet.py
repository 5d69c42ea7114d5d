"""Actors without a cache: the request carries their input, and the response their result."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from lambda_actor import wire
from lambda_actor.errors import OversizedMessageError
from lambda_actor.events import LATE
from lambda_actor.handler import PREWARMED
from lambda_actor.inline import to_text
from runtime.fleet import FleetSetup
from runtime.fleet.inline import InlineFleet
from runtime.fleet.local import LocalFleet
from runtime.ports.fleet import Invocation, Outcome
from tests.environments import EPISODE_STEPS
from tests.fleet.fleet_actors import weights
from tests.helpers import wait_for

VERSION, BYTES_MAX = 1, 10_000


class Answering:
    """A fleet whose actors give prepared answers."""

    concurrency = 1

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts nothing."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        found, self.outcomes = self.outcomes, []
        return found

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Abandons nothing."""

    def close(self) -> None:
        """Closes nothing."""


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
    made = InlineFleet(local, bytes_max=BYTES_MAX)
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


def test_a_prewarmed_actor_needs_no_weights(fleet: InlineFleet) -> None:
    outcome = play(fleet, invocation("a", prewarm=True))
    assert (outcome.status, outcome.response["status"]) == ("ok", PREWARMED)


@pytest.mark.parametrize("text", ["%%%", 7])
def test_a_response_that_is_no_message_is_an_error_of_its_actor(text: object) -> None:
    answering = Answering()
    fleet = InlineFleet(answering, bytes_max=BYTES_MAX)
    fleet.expect(["a"])
    answering.outcomes = [
        Outcome("a", "ok", {"status": "accepted", "trajectory": text}, billed_s=3.0)
    ]
    [outcome] = fleet.wait(0.0)
    assert (outcome.status, outcome.response, outcome.billed_s) == ("error", None, 3.0)
    assert "base64" in outcome.error
    assert fleet.take("a") is None


@pytest.mark.parametrize(("size", "is_taken"), [(BYTES_MAX, True), (BYTES_MAX + 1, False)])
def test_no_trajectory_is_larger_than_any_may_be(size: int, is_taken: bool) -> None:
    answering = Answering()
    fleet = InlineFleet(answering, bytes_max=BYTES_MAX)
    fleet.expect(["a"])
    answering.outcomes = [
        Outcome("a", "ok", {"status": "accepted", "trajectory": to_text(bytes(size))})
    ]
    fleet.wait(0.0)
    found = None
    with suppress(OversizedMessageError):
        found = fleet.take("a")
    assert (found is not None) == is_taken
