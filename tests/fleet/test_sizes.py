"""Payload sizes that fit into a request to AWS Lambda and its response if a run has no cache."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.inline import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX, text_bytes
from lambda_actor.policy import Policy, default_network
from lambda_actor.rollout import EPISODE_BYTES_MAX, roll_out
from lambda_actor.spaces import Spaces
from lambda_actor.trial import random_weights
from runtime.errors import ExperimentError
from runtime.fleet.sizes import check_sizes, traffic_bytes_max, trajectory_bytes_max
from tests.environments import Pictures

HOPPER, HUMANOID = Spaces((11,), action_size=3), Spaces((348,), action_size=17)
GAME = Spaces((4, 84, 84), (1, 84, 84), 4, action_count=6)


def check(spaces: Spaces, steps: int, kind: str = "none", network: str = "mlp") -> None:
    check_sizes(
        spaces, environment_id="Any-v0", fragment_steps=steps, network=network, cache_kind=kind
    )


@pytest.mark.parametrize("spaces", [HOPPER, HUMANOID])
def test_too_long_a_fragment_is_refused_with_the_longest_that_fits(spaces: Spaces) -> None:
    check(spaces, 50_000, kind="redis")
    with pytest.raises(
        ExperimentError, match=r"response.*actor\.fragment_steps = 50000.*6,291,456"
    ) as caught:
        check(spaces, 50_000)
    fits = int(re.search(r"actor\.fragment_steps up to (\d+)", str(caught.value))[1])
    check(spaces, fits)
    with pytest.raises(ExperimentError, match=f"or actor.fragment_steps up to {fits}$"):
        check(spaces, fits + 1)
    whole = text_bytes(trajectory_bytes_max(spaces, fragment_steps=fits)) + FRAME_BYTES_MAX
    assert PAYLOAD_BYTES_MAX - 16_000 < whole <= PAYLOAD_BYTES_MAX


@pytest.mark.parametrize(
    ("spaces", "network"), [(GAME, "conv"), (Spaces((4000,), action_size=1), "mlp")]
)
def test_too_large_a_network_is_refused(spaces: Spaces, network: str) -> None:
    with pytest.raises(
        ExperimentError, match=r"a request has to hold weights of 4,\d{3},\d{3} bytes"
    ):
        check(spaces, 1, network=network)


def make_noise() -> gymnasium.Env:
    """Pictures that cannot be deflated, and episodes that end at each step."""
    return gymnasium.wrappers.TimeLimit(Pictures((40, 40, 3), episode_steps=10**9), 1)


@pytest.mark.parametrize("steps", [1, 64])
@pytest.mark.parametrize(
    "environment_id", ["CartPole-v1", "tests.environments:make_signs", f"{__name__}:make_noise"]
)
def test_no_actor_moves_more_bytes_than_are_reserved(environment_id: str, steps: int) -> None:
    environment = make_environment(environment_id)
    spaces = environment.spaces
    weights = random_weights(spaces)
    policy = Policy.from_bytes(weights)
    fragment = roll_out(environment, policy, fragment_steps=steps, seed=0, round_index=0, slot=0)
    of_round = dict.fromkeys(("round_index", "slot", "policy_version"), np.int64(0))
    of_work = dict.fromkeys(("invocation_id", "continued_episode"), wire.text_field("x" * 36))
    trajectory = wire.encode(fragment.kind, {**fragment.fields(), **of_round, **of_work})
    episode = fragment.fields()["open_episode"].size
    reserved = traffic_bytes_max(spaces, fragment_steps=steps, network=default_network(spaces))
    assert len(weights) + len(trajectory) - episode + 2 * EPISODE_BYTES_MAX <= reserved
    fixed = len(weights) + 2 * EPISODE_BYTES_MAX
    assert reserved < 3 * fixed + 40 * steps * spaces.observation_size
