"""Length of a trajectory: as requested, or shorter by an episode that its actor had to drop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.errors import SchemaError
from lambda_actor.handler import trajectory_fields
from lambda_actor.rollout import roll_out
from lambda_actor.trial import random_policy
from runtime.fleet.actors import Actor, ActorSpec, decode_trajectory
from runtime.money.work import ACTOR, Work
from tests.environments import EPISODE_STEPS

STEPS = 2 * EPISODE_STEPS + 5


def sent(*, is_dropped: bool, cut: int | None = None) -> tuple[bytes, Actor]:
    """Returns a trajectory whose fragment ends two episodes, and its actor, which may have had to drop the third.

    Args:
        cut: Remaining steps of the trajectory; None for all.
    """
    environment = make_environment("tests.environments:make_counter")
    event = {
        "policy_version": 0,
        "round_index": 1,
        "fragment_steps": STEPS,
        "seed": 0,
        "slot": 0,
        "invocation_id": "a",
        "episode_id": "",
        **({"drop_unfinished": True} if is_dropped else {}),
    }
    fragment = roll_out(
        environment,
        random_policy(environment),
        fragment_steps=STEPS,
        seed=0,
        round_index=1,
        slot=0,
        drop_unfinished=is_dropped,
    )
    fields: Mapping[str, Any] = trajectory_fields(event, fragment)
    if cut is not None:
        by_step = ("observations", "actions", "log_probs", "rewards", "terminated", "truncated")
        fields = {name: array[:cut] if name in by_step else array for name, array in fields.items()}
    actor = Actor("a", ActorSpec(event, environment.spaces, 0, 1.0), Work(ACTOR, 0), 0)
    return wire.encode(fragment.kind, fields), actor


@pytest.mark.parametrize(("is_dropped", "steps"), [(False, STEPS), (True, 2 * EPISODE_STEPS)])
def test_a_trajectory_is_as_long_as_asked_or_shorter_by_a_dropped_episode(
    is_dropped: bool, steps: int
) -> None:
    data, actor = sent(is_dropped=is_dropped)
    assert len(decode_trajectory(data, actor)["rewards"]) == steps


@pytest.mark.parametrize(("is_dropped", "cut"), [(False, 2 * EPISODE_STEPS), (True, 0)])
def test_one_that_was_not_to_be_shorter_or_is_empty_is_refused(is_dropped: bool, cut: int) -> None:
    data, actor = sent(is_dropped=is_dropped, cut=cut)
    with pytest.raises(
        SchemaError, match=rf"trajectory of slot 0: steps is {cut}, requested was {STEPS}"
    ):
        decode_trajectory(data, actor)


def told(**changes: Any) -> tuple[bytes, Actor]:
    """Returns the report on a trajectory that remains where it was played, and its actor."""
    data, actor = sent(is_dropped=False)
    fields = (
        wire.decode(data, wire.Kind.TRAJECTORY)
        | {"steps": np.array(STEPS)}
        | {name: np.array(value) for name, value in changes.items()}
    )
    kept = {name: fields[name] for name in wire.SCHEMAS[wire.Kind.KEPT_TRAJECTORY]}
    spec = replace(actor.spec, event={**actor.spec.event, "is_kept": True})
    return wire.encode(wire.Kind.KEPT_TRAJECTORY, kept), replace(actor, spec=spec)


def test_of_a_trajectory_that_stays_where_it_was_played_its_episodes_are_told() -> None:
    found, whole = decode_trajectory(*told()), decode_trajectory(*sent(is_dropped=False))
    assert found["steps"] == STEPS
    assert "observations" not in found
    for name in ("episode_returns", "episode_lengths", "open_episode"):
        assert np.array_equal(found[name], whole[name]), name
