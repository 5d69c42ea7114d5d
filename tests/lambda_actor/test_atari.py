"""Games: observations equal those of Gymnasium's wrappers, and episodes can be cut anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.frames import stack_frames
from lambda_actor.rollout import Fragment, OpenEpisode, random_streams, roll_out
from lambda_actor.spaces import Spaces

gymnasium.register_envs(ale_py)

STICKY = "ALE/Qbert-v5"
GAMES = ["SpaceInvadersNoFrameskip-v4", "QbertNoFrameskip-v4", "GravitarNoFrameskip-v4", STICKY]
STEPS = 340
"""Enough for each game to end an episode with its actions."""
ACTIONS = {"SpaceInvadersNoFrameskip-v4": (11, 6), "GravitarNoFrameskip-v4": (5, 3)}
"""Seed and number of the random actions that end lives early; other games use seed 5 and all actions."""
WHERE = {"seed": 2, "round_index": 1, "slot": 0}


class Acting:
    """A stand-in for a policy: takes given actions in order, whatever it sees, and records its observations."""

    policy_version = 4

    def __init__(self, actions: Iterator[int], action_count: int) -> None:
        self._actions, self._count = actions, action_count
        self.output_size = action_count
        self.seen: list[np.ndarray] = []

    def check(self, spaces: Spaces) -> None:
        pass

    def noise(self, stream: np.random.Generator, steps: int) -> np.ndarray:
        return np.zeros(steps)

    def outputs(self, observation: np.ndarray, context: object) -> np.ndarray:
        self.seen.append(observation.copy())
        return np.zeros(self._count, np.float32)

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> int:
        return next(self._actions)

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.zeros(len(actions), np.float32)


def random_actions(game: str, steps: int = STEPS) -> np.ndarray:
    seed, count = ACTIONS.get(game, (5, made(game).spaces.action_count))
    return np.random.default_rng(seed).integers(count, size=steps)


@cache
def made(game: str) -> ActorEnvironment:
    return make_environment(game)


def played(
    game: str, environment: ActorEnvironment, actions: np.ndarray, **options
) -> tuple[Fragment, np.ndarray]:
    """Returns a fragment of these actions, and the policy's observation at each step."""
    acting = Acting(iter(actions), environment.spaces.action_count)
    fragment = roll_out(environment, acting, fragment_steps=len(actions), **{**WHERE, **options})
    return fragment, np.array(acting.seen)


@cache
def uncut(game: str) -> tuple[Fragment, np.ndarray]:
    return played(game, made(game), random_actions(game))


def observations(fragment: Fragment) -> np.ndarray:
    return stack_frames(fragment.frames, fragment.observations)


# Observations


@pytest.mark.parametrize("game", GAMES)
def test_fragments_are_what_gymnasiums_wrappers_show(game: str) -> None:
    """Compares `AtariPreprocessing` and `FrameStackObservation` over a whole fragment with its ends of episodes."""
    fragment, seen = uncut(game)
    reference = FrameStackObservation(
        AtariPreprocessing(
            gymnasium.make(game, frameskip=1, disable_env_checker=True),
            noop_max=30,
            frame_skip=4,
            screen_size=84,
            terminal_on_life_loss=False,
            grayscale_obs=True,
            scale_obs=False,
        ),
        3,
    )
    _, seeds = random_streams(**WHERE)
    expected, rewards, ends, finals = [], [], [], []
    observation, _ = reference.reset(seed=int(seeds.integers(2**31)))
    for action in random_actions(game):
        expected.append(observation)
        observation, reward, terminated, truncated, _ = reference.step(action)
        rewards.append(reward)
        ends.append((terminated, truncated))
        if terminated or truncated:
            finals.append(observation)
            observation, _ = reference.reset(seed=int(seeds.integers(2**31)))
    np.testing.assert_array_equal(observations(fragment), expected)
    np.testing.assert_array_equal(seen, expected)
    assert fragment.rewards.tolist() == rewards
    assert list(zip(fragment.terminated.tolist(), fragment.truncated.tolist(), strict=True)) == ends
    np.testing.assert_array_equal(
        stack_frames(fragment.frames, fragment.bootstrap_observations), [observation]
    )
    assert len(np.unique(seen, axis=0)) > STEPS // 2, "the picture must change"
    assert finals, "an episode must end"


def make_own_game() -> gymnasium.Env:
    return gymnasium.make("ALE/Qbert-v5", frameskip=1, disable_env_checker=True)


def test_a_users_own_game_is_preprocessed_where_that_is_asked_for() -> None:
    assert make_environment(f"{__name__}:make_own_game").preprocessing == "none"
    assert make_environment(f"{__name__}:make_own_game", "atari").spaces == made(STICKY).spaces


# Cut and continued


def sent(episode: OpenEpisode | None) -> OpenEpisode:
    assert episode is not None
    return OpenEpisode.from_bytes(episode.to_bytes())


def assert_cut_is_uncut(game: str, cuts: list[int], environments: list[ActorEnvironment]) -> None:
    """Fragments between ``cuts``, each in the next environment, equal the uncut one."""
    whole, seen = uncut(game)
    end = (
        int(np.flatnonzero(whole.terminated | whole.truncated | (np.arange(STEPS) == STEPS - 1))[0])
        + 1
    )
    actions = random_actions(game)[:end]
    bounds = [0, *[cut for cut in cuts if cut < end], end]
    parts, episode = [], None
    for i, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
        part, part_seen = played(
            game,
            environments[i % len(environments)],
            actions[start:stop],
            open_episode=episode,
            **({} if i == 0 else {"slot": 9, "round_index": i}),
        )
        np.testing.assert_array_equal(
            part_seen, seen[start:stop], err_msg=f"seen after the cut at {start}"
        )
        parts.append(part)
        if stop < end:
            episode = sent(part.open_episode)
    np.testing.assert_array_equal(
        np.concatenate([observations(part) for part in parts]), observations(whole)[:end]
    )
    for name in ("rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(
            np.concatenate([getattr(part, name) for part in parts]),
            getattr(whole, name)[:end],
            err_msg=name,
        )
    if whole.episode_returns.size:
        assert parts[-1].episode_returns.tolist() == whole.episode_returns[:1].tolist()
        assert parts[-1].episode_lengths.tolist() == [end]


@pytest.mark.parametrize("game", [*GAMES, "ALE/Gravitar-v5"])
def test_a_fragment_cut_anywhere_is_the_uncut_one(game: str) -> None:
    cuts = sorted(
        {1, 2, 3, *np.random.default_rng(1).choice(np.arange(4, STEPS), 25, replace=False).tolist()}
    )
    assert_cut_is_uncut(game, cuts, [make_environment(game), made(game)])


@pytest.mark.parametrize(
    "game",
    [
        "QbertNoFrameskip-v4",
        STICKY,
        "ALE/Breakout-v5",
        "ALE/Berzerk-v5",
        "DoubleDunkNoFrameskip-v4",
    ],
)
def test_an_episode_begins_as_in_a_game_that_was_just_loaded(game: str) -> None:
    """Includes games with paddles and sticky actions, and games that draw random numbers while loading."""
    used, draw = make_environment(game), np.random.default_rng(3)
    for seed in range(2):
        fresh = make_environment(game)
        np.testing.assert_array_equal(used.reset(seed), fresh.reset(seed))
        for action in draw.integers(used.spaces.action_count, size=60):
            (frame, *rest), (expected, *others) = used.step(int(action)), fresh.step(int(action))
            np.testing.assert_array_equal(frame, expected, strict=True)
            assert rest == others
        state, expected_state = used.get_state(), fresh.get_state()
        assert all(np.array_equal(state[name], expected_state[name]) for name in state)
