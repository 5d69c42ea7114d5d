"""Lean steps for games of the Arcade Learning Environment. Loads OpenCV when the first game is made."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from lambda_actor.atari import AleState
from lambda_actor.fast.steps import LeanStep, Outcome


class LeanGame(LeanStep):
    """Steps of a preprocessed game without pictures of skipped frames and without dictionaries."""

    def __init__(self, wrapper: Any, bare: Any, state: AleState) -> None:
        import cv2

        super().__init__(bare)
        self._wrapper = wrapper
        self._state = state
        self._emulator = bare.ale
        self._actions = bare._action_set
        self._frames = wrapper.frame_skip
        self._last, self._before_last = wrapper.obs_buffer
        self._resize = cv2.resize
        self._size = wrapper.screen_size
        self._by_area = cv2.INTER_AREA

    def __call__(self, action: Any) -> Outcome:
        emulator = self._emulator
        code = self._actions[action]
        total = 0.0
        is_over = False
        is_cut = False
        for left in range(self._frames - 1, -1, -1):
            total += emulator.act(code, 1.0)
            is_over = emulator.game_over(with_truncation=False)
            is_cut = emulator.game_truncated()
            if is_over or is_cut:
                break
            if left < 2:
                emulator.getScreenGrayscale(self._before_last if left else self._last)
        self._wrapper.game_over = is_over
        self._state.follow(action)
        np.maximum(self._last, self._before_last, out=self._last)
        return (
            self._resize(self._last, self._size, interpolation=self._by_area)[None],
            total,
            is_over,
            is_cut,
        )


def lean_step(environment: Any, state: object) -> LeanGame | None:
    """Returns steps for a game made by `make_game` and `preprocessed`; None for another environment.

    Args:
        state: The follower of the game's random numbers, if it is a game.
    """
    if not isinstance(state, AleState) or (
        type(environment) is not gymnasium.wrappers.AtariPreprocessing
        or type(environment.env) is not gymnasium.wrappers.OrderEnforcing
    ):
        return None
    bare: Any = environment.env.env
    is_as_made = (
        type(bare).__qualname__ == "AtariEnv"
        and bare._frameskip == 1
        and bare._obs_type == "grayscale"
        and not bare.continuous
        and not bare.sound_obs
        and environment.frame_skip > 1
        and environment.grayscale_obs
        and not environment.grayscale_newaxis
        and not environment.scale_obs
        and not environment.terminal_on_life_loss
    )
    return LeanGame(environment, bare, state) if is_as_made else None
