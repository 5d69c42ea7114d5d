"""One fragment: its length, randomness, bootstrap values and episodes."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import (
    EpisodeStateError,
    NonFiniteTrajectoryError,
    OversizedMessageError,
    UnusableEnvironmentError,
)
from lambda_actor.frames import stack_frames
from lambda_actor.policy import Policy
from lambda_actor.rollout import EPISODE_BYTES_MAX, Fragment, OpenEpisode, roll_out
from lambda_actor.trial import random_policy
from tests.environments import EPISODE_STEPS, FAULT_STEP, LIMIT_STEPS, policy_arrays

COUNTER, LIMITED, PICTURES = (
    f"tests.environments:make_{name}" for name in ("counter", "limited", "pictures")
)
WHERE = {"seed": 3, "round_index": 5, "slot": 7}
ARRAYS = [
    field.name
    for field in fields(Fragment)
    if field.name not in ("open_episode", "action_masks", "frames", "replayed_steps")
]


def policy(version: int = 0, *, log_std: float = -1.0) -> Policy:
    return Policy(policy_arrays(2, 1, policy_version=version, log_std=log_std))


def fragment(environment: str | ActorEnvironment, steps: int, **options) -> Fragment:
    if isinstance(environment, str):
        environment = make_environment(environment)
    return roll_out(
        environment, options.pop("policy", policy()), fragment_steps=steps, **WHERE | options
    )


def sent(episode: OpenEpisode | None) -> OpenEpisode:
    assert episode is not None
    return OpenEpisode.from_bytes(episode.to_bytes())


# Episodes that cannot be continued


@pytest.mark.parametrize("environment_id", [COUNTER, PICTURES])
def test_a_dropped_episode_leaves_the_steps_before_it_as_they_were(environment_id: str) -> None:
    made = make_environment(environment_id)
    chosen = random_policy(made)
    whole = fragment(make_environment(environment_id), 25, policy=chosen)
    kept = fragment(made, 25, policy=chosen, drop_unfinished=True)
    last = int(np.flatnonzero(whole.terminated | whole.truncated)[-1])
    assert 0 < len(kept.rewards) == last + 1 < 25
    assert kept.open_episode is None
    for name in ARRAYS:
        found = getattr(kept, name)
        np.testing.assert_array_equal(found, getattr(whole, name)[: len(found)], strict=True)
    if kept.frames is not None:
        used = {*kept.observations.ravel(), *kept.bootstrap_observations.ravel()}
        assert used == set(range(len(kept.frames)))
        np.testing.assert_array_equal(kept.frames, whole.frames[: len(kept.frames)])


def test_a_fragment_in_which_no_episode_ends_is_an_error() -> None:
    with pytest.raises(
        UnusableEnvironmentError, match="no episode ended in 9 steps, and none can be continued"
    ):
        fragment(COUNTER, 9, drop_unfinished=True)


# Randomness


@pytest.mark.parametrize(
    "changed",
    [{"seed": 4}, {"round_index": 6}, {"slot": 8}, {"round_index": 7, "slot": 5}],
    ids=str,
)
def test_seed_round_and_slot_each_change_noise_and_episodes(changed: dict[str, int]) -> None:
    first, second = fragment(COUNTER, 12), fragment(COUNTER, 12, **changed)
    assert not np.isclose(first.actions, second.actions).any()
    assert not np.isclose(first.observations[[0, 10], 1], second.observations[[0, 10], 1]).any()


# Several fragments in a row


@pytest.mark.parametrize(
    ("environment_id", "period", "ends"),
    [(COUNTER, EPISODE_STEPS, "terminated"), (LIMITED, LIMIT_STEPS, "truncated")],
)
@settings(max_examples=20, derandomize=True, deadline=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=4))
def test_fragments_say_what_happened(
    environment_id: str, period: int, ends: str, lengths: list[int]
) -> None:
    """Rewards are ``10·count + start + action``, so that each field follows from the steps and the actions."""
    parts: list[Fragment] = []
    for version, steps in enumerate(lengths):
        episode = parts[-1].open_episode if parts else None
        where = {"slot": version, "open_episode": episode and sent(episode)}
        wild = policy(version, log_std=2.0)
        parts.append(fragment(make_environment(environment_id), steps, policy=wild, **where))
    joined = {name: np.concatenate([getattr(one, name) for one in parts]) for name in ARRAYS}
    counts, starts = joined["observations"].T
    place = np.arange(sum(lengths))
    is_end = place % period == period - 1
    assert counts.tolist() == (place % period).tolist()
    assert len(set(starts)) == math.ceil(len(place) / period)
    assert joined[ends].tolist() == is_end.tolist()
    assert (joined["terminated"] | joined["truncated"]).sum() == is_end.sum()
    executed = np.clip(joined["actions"][:, 0], -1.0, 1.0)
    np.testing.assert_allclose(joined["rewards"], 10 * (counts + 1) + starts + executed, rtol=1e-6)
    returns = joined["rewards"][: is_end.sum() * period].reshape(-1, period).sum(1)
    np.testing.assert_allclose(joined["episode_returns"], returns, rtol=1e-12)
    assert joined["episode_lengths"].tolist() == [period] * is_end.sum()
    versions = np.repeat(np.arange(len(lengths)), lengths)[::period]
    assert joined["episode_first_versions"].tolist() == versions[: is_end.sum()].tolist()
    begin = 0
    for part in parts:
        last = begin + len(part.rewards) - 1
        # A time limit is bootstrapped, and so is the fragment's end; termination is not.
        cuts = [step for step in range(begin, last) if is_end[step] and ends == "truncated"]
        cuts += [last] * (not is_end[last] or ends == "truncated")
        assert part.bootstrap_steps.tolist() == [step - begin for step in cuts]
        after = [[step % period + 1, starts[step]] for step in cuts]
        assert part.bootstrap_observations.tolist() == after
        begin = last + 1


def test_a_state_over_the_limit_is_refused() -> None:
    episode = fragment(COUNTER, 3).open_episode
    larger = replace(episode, state={"map": np.zeros(EPISODE_BYTES_MAX, np.uint8)})
    with pytest.raises(OversizedMessageError, match=str(EPISODE_BYTES_MAX)):
        larger.to_bytes()


# Pictures, and failures


def test_each_frame_travels_once_and_is_what_the_policy_saw() -> None:
    def played(steps: int, episode: OpenEpisode | None = None) -> Fragment:
        made = make_environment(PICTURES, options={"frame_stack": 3})
        return fragment(made, steps, policy=random_policy(made), open_episode=episode)

    made = make_environment(PICTURES, options={"frame_stack": 3})
    acting = random_policy(made)
    first = played(1)
    # The first two frames of its stack are the same.
    for found, frames in ((played(6), 7), (played(6, sent(first.open_episode)), 8)):
        assert found.observations.shape == (6, 3) and len(found.frames) == frames
        seen = stack_frames(found.frames, found.observations)
        outputs = np.array([acting.outputs(one) for one in seen])
        assert not np.isclose(outputs[1], outputs[2]).all()
        log_probs = acting.log_probs(outputs, found.actions, np.zeros(6))
        np.testing.assert_array_equal(log_probs, found.log_probs)


@pytest.mark.parametrize(("of", "environment_id"), [(COUNTER, PICTURES), (PICTURES, COUNTER)])
def test_an_open_episode_that_stands_elsewhere_is_refused(of: str, environment_id: str) -> None:
    made, other = make_environment(of), make_environment(environment_id)
    episode = sent(fragment(made, 3, policy=random_policy(made)).open_episode)
    with pytest.raises(EpisodeStateError, match="an open episode's observation is"):
        fragment(other, 3, policy=random_policy(other), open_episode=episode)


@pytest.mark.parametrize(
    ("environment", "array", "step"),
    [
        ("nan_reward", "rewards", FAULT_STEP),
        ("nan_observation", "observations", FAULT_STEP + 1),
        ("nan_signs", "observations", FAULT_STEP + 1),
    ],
)
def test_not_a_number_is_named_with_its_step(environment: str, array: str, step: int) -> None:
    with pytest.raises(NonFiniteTrajectoryError, match=rf"\b{array} .*step {step} "):
        made = make_environment(f"tests.environments:make_{environment}")
        fragment(made, 20, policy=random_policy(made))
