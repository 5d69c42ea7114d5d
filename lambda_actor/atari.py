"""Games of the Arcade Learning Environment: made and preprocessed as in papers, with the state of their episodes.

`ale_py` is loaded when the first game is made. It is pinned exactly, because its serialized state is parsed here.

The emulator's state lacks three things. The frames that `AtariPreprocessing` pools are saved with it. The console's
reset switch, pressed for a frame after a reset, is cleared by an idle frame before a state is restored. The action that
a sticky one repeats follows from the emulator's generator, from which each frame draws two numbers: this module follows
the generator.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from lambda_actor.errors import EpisodeStateError
from lambda_actor.frames import deflated, inflated

FRAME_STACK = 3
"""Paper: Nitro §8.1."""
FRAME_SKIP = 4
SCREEN = 84
_ENTRY_POINT = "ale_py.env:AtariEnv"
_DRAWS_PER_FRAME = 2
"""One draw per player."""
_NOOP = 0
_WORDS = 624
_OUTER_LENGTH = 24
"""Offset of the length of the console's state within an emulator's state."""
_GENERATOR_TEXT = re.compile(rb"(?:\d+ ){%d}\d+" % _WORDS)
"""The Mersenne Twister in an emulator's state, in the form that C++ prints."""


def register_games() -> None:
    """Registers the games' ids with Gymnasium, if they are installed."""
    try:
        import ale_py
    except ImportError:
        return
    gymnasium.register_envs(ale_py)
    # Otherwise each new game prints a banner.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def is_game_id(environment_id: str) -> bool:
    """Whether a game is registered under that id, or under that id with a version."""
    return any(spec.entry_point == _ENTRY_POINT for spec in specs_of(environment_id))


def specs_of(environment_id: str) -> list[Any]:
    """Returns Gymnasium's registrations under that id, or under that id with a version."""
    return [
        spec
        for spec in gymnasium.registry.values()
        if environment_id in (spec.id, spec.id.rpartition("-v")[0])
    ]


def is_game(environment: gymnasium.Env) -> bool:
    """Whether a bare environment is a game."""
    return type(environment).__module__ == "ale_py.env"


def steps_max(game: Any) -> float:
    """Returns the maximum steps of a bare environment's episodes; 0 = no limit."""
    frames = int(game.ale.getInt("max_num_frames_per_episode"))
    return frames / int(np.min(game._frameskip))


def make_game(environment_id: str, **settings: Any) -> gymnasium.Env:
    """Makes a registered game for preprocessing: frame by frame, with its other settings, such as sticky actions."""
    made = {"frameskip": 1, "obs_type": "grayscale", "disable_env_checker": True, **settings}
    return gymnasium.make(environment_id, **made)


def preprocessed(game: gymnasium.Env) -> gymnasium.Env:
    """Returns a game with gray 84×84 frames, the maximum of two, one in four. Episodes begin with up to 30 idle ones.

    Raises:
        ValueError: The game skips frames itself.
    """
    return gymnasium.wrappers.AtariPreprocessing(
        game, frame_skip=FRAME_SKIP, screen_size=SCREEN, noop_max=30
    )


class AtariPreprocessingState:
    """The two frames that the wrapper pools. If a game ends early, it shows them again."""

    def __init__(self, wrapper: gymnasium.wrappers.AtariPreprocessing) -> None:
        self._wrapper = wrapper

    def get_state(self) -> dict[str, np.ndarray]:
        return {
            "frames": deflated(np.stack(self._wrapper.obs_buffer)),
            "lives": np.array(self._wrapper.lives, np.int64),
            "game_over": np.array(self._wrapper.game_over, np.bool_),
        }

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        buffer = self._wrapper.obs_buffer
        for frame, saved in zip(
            buffer, inflated(state["frames"], (2, *buffer[0].shape)), strict=True
        ):
            frame[...] = saved
        self._wrapper.lives = int(state["lives"])
        self._wrapper.game_over = bool(state["game_over"])


class AleState:
    """A game's console, its generators, and the action that sticks."""

    def __init__(self, environment: Any) -> None:
        """Follows a game's random numbers from now on if its actions are sticky.

        Args:
            environment: The bare `AtariEnv`.

        Raises:
            EpisodeStateError: Frame skips are random, or actions are both continuous and sticky.
        """
        if isinstance(environment._frameskip, tuple):
            raise EpisodeStateError("a game with random frame skips has no known state")
        self._environment = environment
        self._stickiness = environment.ale.getFloat("repeat_action_probability")
        if self._stickiness and environment.continuous:
            raise EpisodeStateError("continuous actions of a game cannot be sticky")
        self._action = _NOOP
        self._frames = 0
        self._generator = np.random.MT19937(0)
        self._step = environment.step
        self._reset = environment.reset
        self._load = environment.load_game
        self._loaded = b""
        environment.load_game = self._restore_loaded
        if self._stickiness:
            environment.step = self._followed_step
            environment.reset = self._followed_reset

    def _followed_reset(self, **options: Any) -> Any:
        result = self._reset(**options)
        self._action = _NOOP
        self._follow(self._serialized())
        return result

    def _restore_loaded(self) -> None:
        """Restores the state right after loading, in a twentieth of the time: loading mostly makes color tables.

        A freshly loaded game is always in the same state, except for the generator of sticky actions. Two games of 62,
        Berzerk and Double Dunk, draw from it while loading, so they are loaded each time.
        """
        environment = self._environment
        if self._loaded:
            seed = environment.ale.getInt("random_seed") % 2**32
            self._restore(self._loaded)
            self._stick_to(_NOOP)
            self._restore(_with_generator(self._loaded, _seeded(seed)))
            return
        self._load()
        if environment._game_mode is None and environment._game_difficulty is None:
            console = self._serialized()
            if _generator_in(console).state["state"]["pos"] == _WORDS:
                self._loaded = console

    def _followed_step(self, action: int) -> Any:
        result = self._step(action)
        self.follow(action)
        return result

    def follow(self, action: int) -> None:
        """Records that the emulator has taken frames with an action."""
        if not self._stickiness:
            return
        before = self._frames
        self._frames = self._environment.ale.getFrameNumber()
        if self._frames < before:
            # Another follower of the same game has reset it.
            self._follow(self._serialized())
            return
        draws = self._generator.random_raw(_DRAWS_PER_FRAME * (self._frames - before))[
            ::_DRAWS_PER_FRAME
        ]
        if (draws / 2.0**32 >= self._stickiness).any():
            self._action = int(action)

    def get_state(self) -> dict[str, np.ndarray]:
        console = self._serialized()
        return {
            "console": deflated(np.frombuffer(console, np.uint8)),
            "console_bytes": np.array(len(console), np.int64),
            "sticky_action": np.array(self._action, np.int64),
        }

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        console = inflated(state["console"], (int(state["console_bytes"]),)).tobytes()
        # Right after a reset the console's own switch is still pressed, but its state does not contain this.
        self._environment.step(_NOOP)
        self._stick_to(int(state["sticky_action"]))
        self._restore(console)

    def _stick_to(self, action: int) -> None:
        """Takes frames until that action is the sticky one."""
        while self._stickiness and self._action != action:
            self._followed_step(action)

    def _restore(self, console: bytes) -> None:
        from ale_py import ALEState

        self._environment.ale.restoreState(ALEState(console))
        if self._stickiness:
            self._follow(console)

    def _serialized(self) -> bytes:
        console: bytes = self._environment.ale.cloneState(include_rng=True).serialize()
        return console

    def _follow(self, console: bytes) -> None:
        self._frames = self._environment.ale.getFrameNumber()
        self._generator = _generator_in(console)


def _generator_in(console: bytes) -> np.random.MT19937:
    """Finds the generator of random numbers in an emulator's state.

    Raises:
        EpisodeStateError: There is none.
    """
    # The first one is the console's own, which filled its memory.
    texts = _GENERATOR_TEXT.findall(console)
    if len(texts) != 2:
        raise EpisodeStateError("the emulator's state holds no generator of random numbers")
    numbers = [int(word) for word in texts[1].split()]
    generator = np.random.MT19937(0)
    generator.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(numbers[:-1], np.uint32), "pos": numbers[-1]},
    }
    return generator


def _seeded(seed: int) -> bytes:
    """Returns the state of a Mersenne Twister as C++ seeds and prints it."""
    state = np.random.RandomState(seed).get_state(legacy=False)["state"]
    return " ".join(map(str, [*state["key"].tolist(), state["pos"]])).encode()


def _with_generator(console: bytes, generator: bytes) -> bytes:
    """Returns an emulator's state with another random generator."""
    match = list(_GENERATOR_TEXT.finditer(console))[1]
    length = struct.pack("<i", len(generator))
    (outer,) = struct.unpack_from("<i", console, _OUTER_LENGTH)
    outer_length = struct.pack("<i", outer + len(generator) - len(match.group()))
    return b"".join(
        (
            console[:_OUTER_LENGTH],
            outer_length,
            console[_OUTER_LENGTH + 4 : match.start() - 4],
            length,
            generator,
            console[match.end() :],
        )
    )
