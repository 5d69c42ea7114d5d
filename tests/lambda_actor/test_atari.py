"""Games: frames equal those of Gymnasium's wrapper, and episodes can be cut anywhere."""

from __future__ import annotations

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing

from lambda_actor.environments import make_environment

gymnasium.register_envs(ale_py)

INVADERS, STICKY = "SpaceInvadersNoFrameskip-v4", "ALE/Qbert-v5"
STEPS = 340
"""Enough for each game to end an episode with the actions of seed 11."""


def random_actions(count: int) -> list[int]:
    return np.random.default_rng(11).integers(count, size=STEPS).tolist()


@pytest.mark.parametrize("game", [INVADERS, STICKY, "ALE/Berzerk-v5"])
def test_games_are_what_gymnasiums_wrapper_shows(game: str) -> None:
    """Also from a second reset on, which does not load the game again. Berzerk draws random numbers while loading."""
    ours, lengths = make_environment(game), []
    bare = gymnasium.make(game, frameskip=1, disable_env_checker=True)
    theirs = AtariPreprocessing(bare, noop_max=30, frame_skip=4, screen_size=84)
    for seed in (2, 5):
        seen, expected = ours.reset(seed), theirs.reset(seed=seed)[0]
        for step, action in enumerate(random_actions(ours.spaces.action_count)):
            np.testing.assert_array_equal(seen, expected[None], strict=True)
            seen, *rest = ours.step(action)
            expected, *others, _ = theirs.step(action)
            assert rest == others, f"step {step}"
            if rest[1] or rest[2]:
                break
        lengths.append(step + 1)
    assert min(lengths) < STEPS, "an episode must end"


@pytest.mark.parametrize("game", [INVADERS, STICKY])
def test_an_episode_cut_anywhere_goes_on_in_another_process(game: str) -> None:
    uncut, here, there = (make_environment(game) for _ in range(3))
    actions = random_actions(uncut.spaces.action_count)
    there.reset(5)
    np.testing.assert_array_equal(uncut.reset(2), here.reset(2))
    for step, action in enumerate(actions):
        if step in (1, 2, 3, 50, 51, 110, 205, 270):
            state = here.get_state()
            here, there = there, here
            here.set_state(state)
            # Only the last frames of a game that ends early show what was pooled before.
            restored = here.get_state()
            assert [name for name in state if not np.array_equal(state[name], restored[name])] == []
        (frame, *rest), (expected, *others) = here.step(action), uncut.step(action)
        np.testing.assert_array_equal(frame, expected, err_msg=f"step {step}")
        assert rest == others
        if rest[1]:
            break


def make_own_game() -> gymnasium.Env:
    return gymnasium.make(STICKY, frameskip=1, disable_env_checker=True)


def test_a_users_own_game_is_preprocessed_where_that_is_asked_for() -> None:
    assert make_environment(f"{__name__}:make_own_game").preprocessing == "none"
    spaces = make_environment(f"{__name__}:make_own_game", "atari").spaces
    assert spaces == make_environment(STICKY).spaces
