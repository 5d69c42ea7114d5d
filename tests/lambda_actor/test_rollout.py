"""One fragment: its length, randomness, bootstrap values and episodes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

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

COUNTER, LIMITED, ENDLESS, PICTURES = (
    f"tests.environments:make_{name}" for name in ("counter", "limited", "endless", "pictures")
)
WHERE = {"seed": 3, "round_index": 5, "slot": 7}
ARRAYS = [
    field.name
    for field in fields(Fragment)
    if field.name not in ("open_episode", "action_masks", "frames", "replayed_steps")
]


def policy(version: int = 0, *, log_std: float = -1.0) -> Policy:
    return Policy(policy_arrays(2, 1, policy_version=version, log_std=log_std))


def fragment(
    environment_id: str | ActorEnvironment, steps: int, *, version: int = 0, **options
) -> Fragment:
    environment = (
        make_environment(environment_id) if isinstance(environment_id, str) else environment_id
    )
    return roll_out(
        environment,
        options.pop("policy", policy(version)),
        fragment_steps=steps,
        **{**WHERE, **options},
    )


def sent(episode: OpenEpisode | None) -> OpenEpisode:
    assert episode is not None
    return OpenEpisode.from_bytes(episode.to_bytes())


def assert_equal_arrays(first: Fragment, second: Fragment) -> None:
    for name in ARRAYS:
        np.testing.assert_array_equal(
            getattr(first, name), getattr(second, name), err_msg=name, strict=True
        )


# Episodes that cannot be continued


@pytest.mark.parametrize("environment_id", [COUNTER, LIMITED, "tests.environments:make_pictures"])
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


def test_a_replaced_actor_brings_back_the_very_same_trajectory() -> None:
    used = make_environment(COUNTER)
    fragment(used, 13, seed=99)
    assert_equal_arrays(fragment(COUNTER, 30), fragment(used, 30))


@pytest.mark.parametrize(
    "changed",
    [{"seed": 4}, {"round_index": 6}, {"slot": 8}, {"round_index": 7, "slot": 5}],
    ids=str,
)
def test_seed_round_and_slot_each_change_noise_and_episodes(changed: dict[str, int]) -> None:
    first, second = fragment(COUNTER, 12), fragment(COUNTER, 12, **changed)
    assert not np.isclose(first.actions, second.actions).any()
    assert not np.isclose(first.observations[[0, 10], 1], second.observations[[0, 10], 1]).any()


def test_actions_are_recorded_as_sampled_but_executed_clipped() -> None:
    sampled = fragment(ENDLESS, 50, policy=policy(log_std=2.0))
    assert np.abs(sampled.actions).max() > 2.0
    count, start = sampled.observations.T.astype(np.float64)
    executed = np.clip(sampled.actions[:, 0], -1.0, 1.0)
    np.testing.assert_allclose(sampled.rewards, 10.0 * (count + 1) + start + executed, rtol=1e-6)


# Shape and bootstrap values


def test_termination_is_not_bootstrapped() -> None:
    sampled = fragment(COUNTER, EPISODE_STEPS + 5)
    assert np.flatnonzero(sampled.terminated).tolist() == [EPISODE_STEPS - 1]
    assert sampled.bootstrap_steps.tolist() == [EPISODE_STEPS + 4]
    assert sampled.bootstrap_observations[:, 0].tolist() == [5.0]


def test_the_time_limit_is_bootstrapped_from_the_last_observation_before_the_reset() -> None:
    sampled = fragment(LIMITED, 2 * LIMIT_STEPS + 3)
    ends = [LIMIT_STEPS - 1, 2 * LIMIT_STEPS - 1]
    assert np.flatnonzero(sampled.truncated).tolist() == ends
    assert sampled.bootstrap_steps.tolist() == [*ends, 2 * LIMIT_STEPS + 2]
    assert sampled.bootstrap_observations[:, 0].tolist() == [LIMIT_STEPS, LIMIT_STEPS, 3.0]
    np.testing.assert_array_equal(
        sampled.bootstrap_observations[:, 1], sampled.observations[[0, 7, 14], 1]
    )


def test_the_cut_is_bootstrapped_from_the_observation_that_the_next_fragment_starts_at() -> None:
    first, abandoned = fragment(COUNTER, 4), fragment(COUNTER, 4, truncate_at_fragment=True)
    second = fragment(COUNTER, 4, slot=1, open_episode=sent(first.open_episode))
    assert first.bootstrap_steps.tolist() == [3]
    np.testing.assert_array_equal(first.bootstrap_observations[0], second.observations[0])
    assert abandoned.open_episode is None
    assert_equal_arrays(first, abandoned)


# Episodes that span fragments


def test_statistics_of_an_episode_over_three_fragments() -> None:
    first = fragment(COUNTER, 4, version=3, slot=0)
    second = fragment(COUNTER, 4, version=4, slot=1, open_episode=sent(first.open_episode))
    third = fragment(
        COUNTER, 2 + EPISODE_STEPS + 3, version=6, slot=2, open_episode=sent(second.open_episode)
    )
    assert [len(part.episode_returns) for part in (first, second, third)] == [0, 0, 2]
    whole = np.concatenate([first.rewards, second.rewards, third.rewards])
    np.testing.assert_allclose(
        third.episode_returns, [whole[:10].sum(), whole[10:20].sum()], rtol=1e-12
    )
    assert third.episode_lengths.tolist() == [EPISODE_STEPS, EPISODE_STEPS]
    assert third.episode_first_versions.tolist() == [3, 6]


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
    # Of its stack, the first two are one frame.
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
