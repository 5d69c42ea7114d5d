"""Rounds of worlds against scripted environments, whose samples and episodes are computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.spaces import Spaces
from runtime.gmi.worlds.batched import Worlds
from runtime.gmi.worlds.sampler import Sampler
from runtime.learner import LearnerSpec
from runtime.learner.interfaces import Batch
from runtime.learner.normaliser import moments_of
from runtime.learner.ppo import Ppo
from runtime.learner.settings import PpoSettings
from tests.gmi.worlds.scripted import Scripted

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
GO_ON, TERMINATES, TIMES_OUT = range(3)


def learner(*, normalizes: bool = True) -> Ppo:
    section = PpoSettings(
        kind="ppo", normalize_observations=normalizes, discount=0.9, epochs=1, minibatch_steps=64
    )
    spec = LearnerSpec(section, Spaces((3,), action_size=2), "mlp tanh 8", seed=1, initial_std=0.4)
    found = Ppo(spec)
    if normalizes:
        found.moments.add(*moments_of(np.random.default_rng(0).normal(1.0, 2.0, (64, 3))))
    return found


def sampler(environment: Any, steps: int) -> Sampler:
    return Sampler(Worlds(environment, "scripted", environment.num_envs, CPU), steps)


def by_hand(rewards: np.ndarray, ends: np.ndarray, steps: int, *, has_finals: bool) -> Any:
    """Yields for each round what it must be, one world after the other."""
    count = rewards.shape[1]
    episode, at = np.zeros(count, int), np.zeros(count, int)
    total, first_version = np.zeros(count), np.zeros(count, int)
    for version in range(len(rewards) // steps):
        observations = np.zeros((steps, count, 3), np.float32)
        cut, bootstraps, episodes = np.zeros((steps, count), bool), [], []
        for world in range(count):
            for step in range(steps):
                end = ends[version * steps + step, world]
                here = [world, episode[world], at[world]]
                if at[world] == 0:
                    first_version[world] = version
                observations[step, world] = here
                total[world] += rewards[version * steps + step, world]
                at[world] += 1
                after = [world, episode[world], at[world]]
                if end == TIMES_OUT and not has_finals:
                    after = here
                if end == TIMES_OUT or (end == GO_ON and step + 1 == steps):
                    cut[step, world] = True
                    bootstraps.append(after)
                if end != GO_ON:
                    episodes.append((step, world, total[world], at[world], first_version[world]))
                    total[world], at[world] = 0.0, 0
                    episode[world] += 1
        yield observations, cut, np.array(bootstraps, np.float32), sorted(episodes)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_round_is_what_its_worlds_would_give_one_by_one(data: st.DataObject) -> None:
    steps, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    rounds, has_finals = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    chance = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rewards = chance.normal(size=(rounds * steps, count)).astype(np.float32)
    ends = chance.choice(3, size=rewards.shape, p=[0.6, 0.2, 0.2])
    environment = Scripted(rewards, ends, has_finals=has_finals)
    played = sampler(environment, steps)
    agent = learner(normalizes=data.draw(st.booleans()))
    for version, expected in enumerate(by_hand(rewards, ends, steps, has_finals=has_finals)):
        observations, cut, bootstraps, episodes = expected
        agent.policy_version = version
        batch: Any = played.play(agent, version + 1, seed=7, instance=0)
        part = slice(version * steps, (version + 1) * steps)
        assert torch.equal(batch.observations, torch.from_numpy(observations))
        assert torch.equal(batch.rewards, torch.from_numpy(rewards[part]).double())
        assert torch.equal(batch.terminated, torch.from_numpy(ends[part] == TERMINATES))
        assert torch.equal(batch.bootstrap_mask, torch.from_numpy(cut))
        assert torch.equal(batch.bootstrap_observations, torch.from_numpy(bootstraps).view(-1, 3))
        assert torch.equal(batch.actions, torch.stack(environment.actions[part]))
        assert batch.policy_versions.tolist() == [version] * count
        assert batch.env_steps == steps * count
        outputs = agent.evaluate(agent.policy, batch.observations.flatten(0, 1))
        log_probs = agent.distribution.log_prob(outputs, batch.actions.flatten(0, 1))
        torch.testing.assert_close(batch.log_probs.flatten(), log_probs)
        found = played.episodes
        np.testing.assert_allclose(found["returns"], [one[2] for one in episodes], atol=1e-5)
        assert found["lengths"].tolist() == [one[3] for one in episodes]
        assert found["first_versions"].tolist() == [one[4] for one in episodes]


def targets(batch: Batch, agent: Ppo) -> torch.Tensor:
    return agent.samples(batch).tensors["value_targets"].view(batch.rewards.shape)


def test_time_outs_are_bootstrapped_and_a_dead_episode_does_not_leak_into_the_next() -> None:
    rewards = np.arange(10, dtype=np.float32).reshape(5, 2)
    ends = np.array([[0, 0], [1, 2], [0, 0], [0, 0], [0, 0]])
    agent = learner()
    batch: Any = sampler(Scripted(rewards, ends), 5).play(agent, 1, seed=0, instance=0)
    found = targets(batch, agent)
    assert found[1, 0] == rewards[1, 0], "nothing follows a termination"
    # Two worlds timed out or were cut at the end: the second world's follower is its first bootstrap.
    value = agent.evaluate(agent.critic, torch.tensor([[1.0, 0.0, 2.0]]))[0]
    torch.testing.assert_close(found[1, 1], rewards[1, 1] + 0.9 * value)
    other = rewards.copy()
    other[2:] += 100.0
    changed: Any = sampler(Scripted(other, ends), 5).play(agent, 1, seed=0, instance=0)
    assert torch.equal(targets(changed, agent)[:2], found[:2])
    assert not torch.equal(targets(changed, agent)[2:], found[2:])


def test_noise_depends_on_seed_round_and_instance_alone() -> None:
    nothing = np.zeros((8, 3), np.float32)

    def actions(round_index: int, **changes: int) -> torch.Tensor:
        played = sampler(Scripted(nothing, nothing.astype(int)), 4)
        found: Any = played.play(learner(), round_index, **{"seed": 1, "instance": 0, **changes})
        return found.actions.clone()

    first = actions(1)
    assert torch.equal(first, actions(1))
    for other in (actions(2), actions(1, seed=2), actions(1, instance=1)):
        assert not torch.equal(first, other)
    assert len(set(first.flatten().tolist())) == first.numel()


def test_an_update_that_is_repeated_gets_the_same_samples_and_plays_no_step() -> None:
    nothing = np.zeros((4, 3), np.float32)
    environment = Scripted(nothing, nothing.astype(int))
    played, agent = sampler(environment, 4), learner()
    first = played.play(agent, 1, seed=1, instance=0)
    assert played.play(learner(), 1, seed=1, instance=0) is first
    assert len(environment.actions) == 4


def test_a_number_that_is_not_finite_ends_the_round() -> None:
    rewards = np.array([[0.0], [np.inf], [0.0]], np.float32)
    with pytest.raises(UnusableEnvironmentError, match="a reward .* step 1 .* world 0"):
        sampler(Scripted(rewards, np.zeros((3, 1), int)), 3).play(learner(), 1, seed=0, instance=0)
