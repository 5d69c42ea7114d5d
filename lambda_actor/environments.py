"""Environments as an actor needs them: made by name, their spaces told, their episodes able to be left open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from lambda_actor import atari, making, mujoco_v5
from lambda_actor.episode_state import EpisodeStore, State, episode_stores, layers
from lambda_actor.errors import EpisodeStateError, UnusableEnvironmentError
from lambda_actor.lean import LeanStep
from lambda_actor.spaces import Spaces

PIXELS_MIN = 16
"""Sides of a picture at least; anything smaller is a vector of numbers."""
_CHANNELS_MAX = 4


class ActorEnvironment:
    """One environment as networks see it.

    Its frames are uint8 ``[C, H, W]`` if it shows pixels, else vectors float32 ``[O]``; its actions float32
    ``[A]``, clipped to the action space, or whole numbers from 0.

    Attributes:
        spaces: What a policy sees and does. A frame is one of ``spaces.frame_stack`` (see `lambda_actor.frames`).
        preprocessing: ``atari`` or ``none``.
        episode_steps_max: The time limit in steps, or None if episodes can be of any length.
    """

    def __init__(self, environment: gymnasium.Env, environment_id: str, preprocessing: str = "none") -> None:
        """Reads the environment's spaces.

        Raises:
            UnusableEnvironmentError: No policy here can act in its spaces.
        """
        self.environment_id, self.preprocessing = environment_id, preprocessing
        self._environment = environment
        self._frames = _observation_codec(environment.observation_space, environment_id)
        self._actions = _action_codec(environment.action_space, environment_id)
        self.spaces = _spaces(self._frames, self._actions, atari.FRAME_STACK if preprocessing == "atari" else 1)
        self.episode_steps_max = _time_limit(environment)
        self._stores: list[EpisodeStore] | None = None
        self._store_error = ""
        try:
            self._stores = episode_stores(environment)
        except EpisodeStateError as error:
            self._store_error = str(error)
        store = self._stores[-1] if self._stores else None
        self._lean = mujoco_v5.lean_step(environment, store) or atari.lean_step(environment, store)
        self._lean_step: LeanStep | None = None
        self._was_reset = False

    @property
    def gymnasium_environment(self) -> gymnasium.Env:
        """What it wraps, with its own wrappers."""
        return self._environment

    @property
    def can_save_episode(self) -> bool:
        """Whether an open episode can travel to another process."""
        return self._stores is not None

    @property
    def cannot_save_reason(self) -> str:
        return self._store_error

    def reset(self, seed: int) -> np.ndarray:
        """Starts a new episode from ``seed`` alone; returns its first frame.

        Raises:
            UnusableEnvironmentError: The observation is another than the space says; also in `step`.
        """
        observation, _ = self._environment.reset(seed=seed)
        self._was_reset = True
        self._choose_step()
        return self._frame(observation)

    def to_environment(self, action: np.ndarray | int) -> Any:
        """Returns a policy's action as the environment takes it: clipped and shaped, or a whole number."""
        return self._actions.to_environment(action)

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        """One step with ``action``.

        Returns:
            frame, reward, terminated, truncated.
        """
        taken = self._actions.to_environment(action)
        if self._lean_step is not None:
            return self._lean_step(taken)
        observation, reward, terminated, truncated, _ = self._environment.step(taken)
        return self._frame(observation), float(reward), bool(terminated), bool(truncated)

    def get_state(self) -> State:
        """The open episode's state after at least one step.

        Raises:
            EpisodeStateError: The environment offers no way to save it.
        """
        if self._stores is None:
            raise EpisodeStateError(self._store_error)
        return {f"{i}.{name}": value for i, store in enumerate(self._stores)
                for name, value in store.get_state().items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues the episode that `get_state` saved, here or in another process.

        Raises:
            EpisodeStateError: The state is not one of this environment's.
        """
        if self._stores is None:
            raise EpisodeStateError(self._store_error)
        # Wrappers check that reset() was called, and some count from there. A seed makes a game be loaded anew, which
        # takes longer than many steps; its generators are part of the state.
        is_game = atari.is_game(self._environment.unwrapped)
        outermost = self._environment.unwrapped if is_game and self._lean and self._was_reset else self._environment
        outermost.reset(seed=None if is_game else 0)
        self._was_reset = True
        self._choose_step()
        for i, store in reversed(list(enumerate(self._stores))):
            prefix = f"{i}."
            part = {name[len(prefix):]: value for name, value in state.items() if name.startswith(prefix)}
            try:
                store.set_state(part)
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise EpisodeStateError(
                    f"{self.environment_id} cannot continue a saved episode: {type(error).__name__}: {error}"
                ) from error

    def close(self) -> None:
        self._environment.close()

    def _choose_step(self) -> None:
        self._lean_step = self._lean if self._lean is not None and self._lean.is_usable else None

    def _frame(self, observation: object) -> np.ndarray:
        array = np.asarray(observation)
        if array.shape != self._frames.shape or (self.spaces.is_pixels and array.dtype != np.uint8):
            raise UnusableEnvironmentError(
                f"{self.environment_id} returned an observation {array.dtype} of shape {array.shape}; its observation "
                f"space says {self._frames.space}")
        return self._frames.to_frame(array)


def make_environment(
    environment_id: str, preprocessing: str = "auto", options: Mapping[str, Any] | None = None
) -> ActorEnvironment:
    """The environment of that name.

    Args:
        environment_id: A Gymnasium id (``Hopper-v5``, ``ALE/Qbert-v5``), ``module:factory`` for a callable of the
            user's own that returns a `gymnasium.Env`, or ``module:Id-v0`` for an id that importing ``module``
            registers.
        preprocessing: ``atari``, ``none``, or ``auto``: atari for the registered games.
        options: Some of `lambda_actor.making.OPTIONS`; None if it is made as it is registered.

    Raises:
        UnusableEnvironmentError: It cannot be imported or made, is no game that could be preprocessed, or its spaces
            are not supported.
    """
    environment, is_atari = making.make(environment_id, preprocessing, options or {})
    return ActorEnvironment(environment, environment_id, "atari" if is_atari else "none")


class _Vectors:
    """Observations of numbers, of any rank, as float32 ``[O]``."""

    def __init__(self, space: gym_spaces.Box) -> None:
        self.space, self.shape = space, space.shape
        self.frame_shape = (math.prod(space.shape),)

    def to_frame(self, observation: np.ndarray) -> np.ndarray:
        # A copy: some environments write the next observation into the same array.
        return np.array(observation, dtype=np.float32).reshape(-1)


class _Pixels:
    """Pictures ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]`` as uint8 ``[C, H, W]``."""

    def __init__(self, space: gym_spaces.Box) -> None:
        self.space, self.shape = space, space.shape
        self._order = None
        if len(space.shape) == 3 and not _is_channels_first(space.shape):
            self._order = (2, 0, 1)
        self.frame_shape = self.to_frame(np.zeros(space.shape, np.uint8)).shape

    def to_frame(self, observation: np.ndarray) -> np.ndarray:
        if observation.ndim == 2:
            observation = observation[None]
        return np.array(observation if self._order is None else observation.transpose(self._order), order="C")


class _ContinuousActions:
    """Numbers float32 ``[A]``, clipped to a Box of any rank."""

    def __init__(self, space: gym_spaces.Box) -> None:
        self.size, self.count = math.prod(space.shape), 0
        self._shape, self._low, self._high = space.shape, space.low, space.high

    def to_environment(self, action: np.ndarray | int) -> np.ndarray:
        shaped = action if np.shape(action) == self._shape else np.reshape(action, self._shape)
        clipped: np.ndarray = np.minimum(np.maximum(shaped, self._low), self._high)
        return clipped


class _DiscreteActions:
    """Whole numbers from 0, whatever the environment's start with."""

    def __init__(self, space: gym_spaces.Discrete) -> None:
        self.size, self.count = 0, int(space.n)
        self._start = int(space.start)

    def to_environment(self, action: np.ndarray | int) -> int:
        return self._start + int(action)


def _observation_codec(space: gym_spaces.Space[Any], environment_id: str) -> _Vectors | _Pixels:
    if not isinstance(space, gym_spaces.Box) or not math.prod(space.shape):
        raise _refusal(environment_id, "observation", space, "Box",
                       "gymnasium.wrappers.FlattenObservation makes one of Dict, Tuple, Discrete and their like")
    return _Pixels(space) if _is_picture(space) else _Vectors(space)


def _action_codec(space: gym_spaces.Space[Any], environment_id: str) -> _ContinuousActions | _DiscreteActions:
    if isinstance(space, gym_spaces.Discrete):
        return _DiscreteActions(space)
    if isinstance(space, gym_spaces.Box) and np.issubdtype(space.dtype, np.floating) and 0 not in space.shape:
        return _ContinuousActions(space)
    raise _refusal(environment_id, "action", space, "Box of floats, Discrete",
                   "a wrapper of gymnasium.ActionWrapper can make one of it, such as one number for each combination")


def _refusal(environment_id: str, name: str, space: gym_spaces.Space[Any], supported: str, advice: str) -> Exception:
    return UnusableEnvironmentError(f"environment.id = {environment_id!r}: its {name} space is {space}; "
                                    f"supported: {supported}; {advice}")


def _is_picture(space: gym_spaces.Box) -> bool:
    if space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    sides = space.shape[1:] if len(space.shape) == 3 and _is_channels_first(space.shape) else space.shape[:2]
    return min(sides) >= PIXELS_MIN


def _is_channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] <= _CHANNELS_MAX < shape[-1]


def _spaces(frames: _Vectors | _Pixels, actions: _ContinuousActions | _DiscreteActions, frame_stack: int) -> Spaces:
    if isinstance(frames, _Vectors):
        return Spaces(frames.frame_shape, action_size=actions.size, action_count=actions.count)
    channels, height, width = frames.frame_shape
    return Spaces((frame_stack * channels, height, width), frames.frame_shape, frame_stack,
                  action_size=actions.size, action_count=actions.count)


def _time_limit(environment: gymnasium.Env) -> int | None:
    """In steps of the outermost layer; inner ones may take several to each."""
    limits, repeats = [], 1
    for layer in layers(environment):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(math.ceil(layer._max_episode_steps / repeats))
        elif isinstance(layer, gymnasium.wrappers.AtariPreprocessing):
            repeats *= layer.frame_skip
        elif atari.is_game(layer) and (frames_max := atari.frames_max(layer)):
            limits.append(math.ceil(frames_max / (repeats * atari.frame_skip_min(layer))))
    return min(limits) if limits else None
