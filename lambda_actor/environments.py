"""Environments for actors: made by name, with known spaces and episodes that can be left open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from lambda_actor import atari, making
from lambda_actor.episode_state import EpisodeStore, MujocoState, State, episode_stores, layers
from lambda_actor.errors import EpisodeStateError, UnusableEnvironmentError, place_of, told
from lambda_actor.fast import games, mujoco_v5
from lambda_actor.fast.steps import LeanStep, why_off
from lambda_actor.frames import combined
from lambda_actor.spaces import Spaces

PIXELS_MIN = 16
"""Minimum sides of a picture. Smaller arrays are vectors."""
_CHANNELS_MAX, _BRIGHTEST = 4, 255
_FLATTENED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)
"""Supported spaces of an observation's numbers. All but Box become zeros and ones."""
_Keys = tuple[str | int, ...]
MASK = "action_mask"
"""Key of the action mask in an observation, or in the info of ``reset`` and ``step``."""


class ActorEnvironment:
    """One environment in the form that networks use.

    Its frames are uint8 ``[C, H, W]`` if it shows pixels, uint8 ``[1, 1, Y]`` if it shows a picture with a vector (see
    `lambda_actor.frames.combined`), otherwise vectors float32 ``[O]``. Its actions are float32 ``[A]``, clipped to the
    action space, or whole numbers from 0, one or ``[A]`` of them.

    Attributes:
        action_mask: Which values of each choice are currently allowed, bool ``[M]``, choices concatenated; None if the
            environment has no masks.
        spaces: A policy's observations and actions. A frame is one of ``spaces.frame_stack`` (see
            `lambda_actor.frames`).
        preprocessing: ``atari`` or ``none``.
        gymnasium_environment: The wrapped environment, with its own wrappers.
        cannot_save_reason: Why an open episode cannot travel to another process; "" if it can.
        episode_steps_max: The time limit in steps, or None if episodes can be of any length.
        plain_because: Why it uses Gymnasium's own steps although fast ones might exist, otherwise "".
    """

    def __init__(
        self,
        environment: gymnasium.Env,
        environment_id: str,
        preprocessing: str = "none",
        frame_stack: int | None = None,
    ) -> None:
        """Reads the environment's spaces.

        Args:
            environment: The environment with all its wrappers.
            environment_id: For messages, and to find a replay's environment.
            preprocessing: ``atari`` or ``none``.
            frame_stack: Frames of pixels per observation; None = three with ``atari``, otherwise one. Always one for a
                picture with a vector.

        Raises:
            UnusableEnvironmentError: No policy can act in its spaces.
        """
        self.environment_id, self.preprocessing = environment_id, preprocessing
        self.gymnasium_environment = environment
        self._space = environment.observation_space
        self._actions = _action_codec(environment.action_space, environment_id)
        self._is_mask_observed = (
            isinstance(self._space, gym_spaces.Dict) and MASK in self._space.spaces
        )
        if isinstance(self._space, gym_spaces.Dict) and self._is_mask_observed:
            # The mask limits the choices and is not observed.
            self._space = gym_spaces.Dict(
                {key: part for key, part in self._space.items() if key != MASK}
            )
        self.action_mask: np.ndarray | None = None
        self._frames = _observation_codec(self._space, environment_id)
        if (frame_stack or 1) > 1 and not isinstance(self._frames, _Pixels):
            raise UnusableEnvironmentError(
                f"environment.frame_stack = {frame_stack}: {environment_id} does not show pixels alone; allowed: "
                "1 | null, or environment.wrappers with gymnasium.wrappers.FrameStackObservation"
            )
        self.spaces = _spaces(
            self._frames,
            self._actions,
            frame_stack or (atari.FRAME_STACK if preprocessing == "atari" else 1),
        )
        if self._is_mask_observed:
            self._require_choices()
            self.spaces = replace(self.spaces, has_action_mask=True)
        self.episode_steps_max = _time_limit(environment)
        self._stores: list[EpisodeStore] | None = None
        self.cannot_save_reason = ""
        try:
            self._stores = episode_stores(environment)
        except EpisodeStateError as error:
            self.cannot_save_reason = str(error)
        store = self._stores[-1] if self._stores else None
        self.plain_because = why_off() if isinstance(store, MujocoState | atari.AleState) else ""
        self._lean = (
            None
            if self.plain_because
            else (mujoco_v5.lean_step(environment, store) or games.lean_step(environment, store))
        )
        self._lean_step: LeanStep | None = None
        self._was_reset = False

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation: a Box's own shape, the vector's for other spaces, or that of pixels.

        Pixels are stacked. A picture with a vector has ``[1, 1, Y]``.
        """
        return self.spaces.observation_shape if self.spaces.is_pixels else self._frames.shape

    @property
    def origin(self) -> str:
        """Class, file and line of the environment without its wrappers."""
        bare = type(self.gymnasium_environment.unwrapped)
        return f"{bare.__name__}{place_of(bare)}"

    @property
    def can_save_episode(self) -> bool:
        """Whether an open episode can travel to another process."""
        return self._stores is not None

    def reset(self, seed: int) -> np.ndarray:
        """Starts a new episode from ``seed`` alone. Returns its first frame.

        Raises:
            UnusableEnvironmentError: The observation does not fit its space, or an action mask is invalid; also in
                `step`.
        """
        observation, told_beside = self.gymnasium_environment.reset(seed=seed)
        self._was_reset = True
        self._choose_step()
        mask = self._told_mask(observation, told_beside)
        self.action_mask = None if mask is None else self.mask_of(mask)
        if self.action_mask is not None and not self.spaces.has_action_mask:
            self.spaces = replace(self.spaces, has_action_mask=True)
        return self.to_frame(observation)

    def to_environment(self, action: np.ndarray | int) -> Any:
        """Converts a policy's action for the environment: clipped and shaped, or a whole number."""
        return self._actions.to_environment(action)

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        """Takes one step with ``action``.

        Returns:
            frame, reward, terminated, truncated.

        Raises:
            UnusableEnvironmentError: The reward is not one number.
        """
        taken = self._actions.to_environment(action)
        if self._lean_step is not None:
            return self._lean_step(taken)
        observation, reward, terminated, truncated, told_beside = self.gymnasium_environment.step(
            taken
        )
        if not isinstance(reward, float):
            reward = self._one_number(reward)
        if (self.action_mask is not None or MASK in told_beside) and not (terminated or truncated):
            # No choice follows an episode's last step.
            mask = self._told_mask(observation, told_beside)
            if mask is None or self.action_mask is None:
                raise UnusableEnvironmentError(
                    f'{self.environment_id} gives info["{MASK}"] at some steps only; '
                    "allowed: at all steps and resets, or at none"
                )
            self.action_mask = self.mask_of(mask)
        return self.to_frame(observation), float(reward), bool(terminated), bool(truncated)

    def get_state(self) -> State:
        """Returns the open episode's state, after at least one step.

        Raises:
            EpisodeStateError: The environment offers no way to save it.
        """
        if self._stores is None:
            raise EpisodeStateError(self.cannot_save_reason)
        return {
            f"{i}.{name}": value
            for i, store in enumerate(self._stores)
            for name, value in store.get_state().items()
        } | ({} if self.action_mask is None else {MASK: self.action_mask})

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues the episode that `get_state` saved, here or in another process.

        Raises:
            EpisodeStateError: The state belongs to another environment.
        """
        if self._stores is None:
            raise EpisodeStateError(self.cannot_save_reason)
        # Wrappers require reset(), and some count from it. No seed, because a seed reloads a game, which takes longer
        # than many steps. The state contains the game's generators.
        outermost = self.gymnasium_environment
        is_game = atari.is_game(outermost.unwrapped)
        if is_game and self._lean and self._was_reset:
            outermost = outermost.unwrapped
        outermost.reset(seed=None if is_game else 0)
        self._was_reset = True
        self._choose_step()
        self.action_mask = self.mask_of(state[MASK]) if MASK in state else None
        for i, store in reversed(list(enumerate(self._stores))):
            prefix = f"{i}."
            part = {
                name[len(prefix) :]: value
                for name, value in state.items()
                if name.startswith(prefix)
            }
            try:
                store.set_state(part)
            except (KeyError, ValueError, TypeError, IndexError) as error:
                raise EpisodeStateError(
                    f"{self.environment_id} cannot continue a saved episode: {type(error).__name__}: {error}"
                ) from error

    def close(self) -> None:
        """Closes the environment and what it has started. Ignores errors."""
        with suppress(Exception):
            self.gymnasium_environment.close()

    def _one_number(self, reward: object) -> float:
        """Returns a reward as a float; some environments return an array of one number."""
        try:
            return float(np.asarray(reward).item())
        except (TypeError, ValueError) as error:
            raise UnusableEnvironmentError(
                f"{self.environment_id} returned a reward {_described(reward)}; allowed: one number; a wrapper of "
                "gymnasium.RewardWrapper can make one of it, such as mo_gymnasium.wrappers.LinearReward"
            ) from error

    def nearest_allowed(self, action: np.ndarray | int) -> np.ndarray | int:
        """Returns an action in which each currently forbidden choice gets its first allowed value."""
        if self.action_mask is None:
            return action
        parts = np.split(self.action_mask, self.spaces.choice_starts[1:])
        chosen = [
            one if part[one] else int(part.argmax())
            for one, part in zip(np.ravel(action).tolist(), parts, strict=True)
        ]
        return chosen[0] if self.spaces.action_count else np.array(chosen)

    def mask_of(self, value: Any) -> np.ndarray:
        """Returns an action mask as bool ``[M]``.

        Args:
            value: Zeros and ones or booleans, ``[M]``, or a list or tuple with one mask for each choice.

        Raises:
            UnusableEnvironmentError: It is not a mask, or allows nothing.
        """
        self._require_choices()
        starts, size = self.spaces.choice_starts, sum(self.spaces.choice_counts)
        try:
            flat = np.concatenate(
                [np.ravel(one) for one in (value if isinstance(value, tuple | list) else [value])]
            )
            is_mask = flat.shape == (size,) and bool(((flat == 0) | (flat == 1)).all())
        except (ValueError, TypeError):
            is_mask = False
        if not is_mask:
            raise UnusableEnvironmentError(
                f"{self.environment_id} gives an action mask {_described(value)}; allowed: "
                f"{size} of 0 and 1, one for each value of each choice"
            )
        mask = flat.astype(np.bool_)
        if not np.logical_or.reduceat(mask, starts).all():
            raise UnusableEnvironmentError(
                f"{self.environment_id} gives an action mask that allows no value of a "
                f"choice: {mask.astype(int).tolist()}"
            )
        return mask

    def _told_mask(self, observation: Any, told_beside: Mapping[str, Any]) -> Any:
        """Returns the mask of an observation in the environment's form."""
        return observation[MASK] if self._is_mask_observed else told_beside.get(MASK)

    def _require_choices(self) -> None:
        if not self._actions.count and not self._actions.counts:
            raise UnusableEnvironmentError(
                f"{self.environment_id} gives an {MASK}, and its actions are continuous; allowed: masks of Discrete, "
                "MultiDiscrete and MultiBinary actions, or a wrapper that leaves the mask out"
            )

    def _choose_step(self) -> None:
        self._lean_step = self._lean if self._lean is not None and self._lean.is_usable else None

    def flattened(self, observation: Any) -> Any:
        """Returns an observation as a frame if its space is not a Box, otherwise unchanged."""
        if self._is_mask_observed and isinstance(observation, Mapping):
            observation = {key: part for key, part in observation.items() if key != MASK}
        is_flat = isinstance(self._space, gym_spaces.Box) or not self._space.contains(observation)
        return observation if is_flat else self.to_frame(observation)

    def to_frame(self, observation: object) -> np.ndarray:
        """Converts an environment's observation to a frame.

        Raises:
            UnusableEnvironmentError: It does not fit the observation space.
        """
        try:
            return self._frames.to_frame(observation)
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise UnusableEnvironmentError(
                f"{self.environment_id} returned an observation {_described(observation)}; its observation space says "
                f"{self.gymnasium_environment.observation_space}"
            ) from error


def make_environment(
    environment_id: str, preprocessing: str = "auto", options: Mapping[str, Any] | None = None
) -> ActorEnvironment:
    """Makes the environment of that name.

    Args:
        environment_id: A Gymnasium id (``Hopper-v5``, ``ALE/Qbert-v5``), ``module:factory`` for a callable of the
            own that returns a `gymnasium.Env`, or ``module:Id-v0`` for an id that importing ``module``
            registers.
        preprocessing: ``atari``, ``none``, or ``auto``: atari for the registered games.
        options: Some of `lambda_actor.making.OPTIONS`; None = as registered.

    Raises:
        UnusableEnvironmentError: It cannot be imported or made, is not a game but ``atari`` is required, or has
            unsupported spaces.
    """
    options = options or {}
    environment, is_atari = making.make(environment_id, preprocessing, options)
    try:
        return ActorEnvironment(
            environment, environment_id, "atari" if is_atari else "none", options.get("frame_stack")
        )
    except UnusableEnvironmentError:
        raise
    except Exception as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r} cannot be used: {told(error)}"
        ) from error


class _Vectors:
    """Numbers of any rank, whole numbers, or several such parts, as float32 ``[O]``."""

    beside_shape: tuple[int, ...] = ()

    def __init__(self, space: gym_spaces.Space[Any]) -> None:
        self._space, self._is_box = space, isinstance(space, gym_spaces.Box)
        self.frame_shape: tuple[int, ...] = (gym_spaces.flatdim(space),)
        self.shape = (space.shape or ()) if self._is_box else self.frame_shape
        self.binary_parts = _binary_parts(list(_leaves(space)))

    def to_frame(self, observation: Any) -> np.ndarray:
        if not self._is_box:
            observation = gym_spaces.flatten(self._space, observation)
        # A copy, because some environments reuse the array for the next observation.
        array = np.array(observation, np.float32)
        _require_shape(array, self.shape)
        return array.reshape(-1)


class _Pixels:
    """Pictures ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, alone or under keys, as uint8 ``[C, H, W]``."""

    binary_parts: tuple[tuple[int, int], ...] = ()
    beside_shape: tuple[int, ...] = ()

    def __init__(self, keys: _Keys, space: gym_spaces.Space[Any]) -> None:
        self.shape, self._keys = space.shape or (), keys
        height, *_, last = self.shape
        self._order = (0, 1, 2) if _is_channels_first(self.shape) else (2, 0, 1)
        self.frame_shape: tuple[int, ...] = (1, height, last)
        if len(self.shape) == 3:
            self.frame_shape = tuple(self.shape[side] for side in self._order)

    def to_frame(self, observation: Any) -> np.ndarray:
        array = np.asarray(_at(observation, self._keys))
        _require_shape(array, self.shape)
        if array.dtype != np.uint8:
            raise TypeError(f"it is {array.dtype}")
        array = array[None] if array.ndim == 2 else array.transpose(self._order)
        return np.array(array, order="C")


class _Combined:
    """One picture of a Dict or Tuple and everything else in it, flattened, as uint8 ``[1, 1, Y]``."""

    def __init__(
        self, keys: _Keys, picture: gym_spaces.Space[Any], space: gym_spaces.Space[Any]
    ) -> None:
        self._picture = _Pixels(keys, picture)
        self._rest = [(others, leaf) for others, leaf in _leaves(space) if others != keys]
        self.beside_shape, self.binary_parts = self._picture.frame_shape, _binary_parts(self._rest)
        self._size = sum(gym_spaces.flatdim(leaf) for _, leaf in self._rest)
        self.frame_shape: tuple[int, ...] = (1, 1, math.prod(self.beside_shape) + 4 * self._size)
        self.shape = self.frame_shape

    def to_frame(self, observation: Any) -> np.ndarray:
        parts: Any = [gym_spaces.flatten(leaf, _at(observation, keys)) for keys, leaf in self._rest]
        vector = np.concatenate(parts, dtype=np.float32, casting="unsafe")
        _require_shape(vector, (self._size,))
        return combined(self._picture.to_frame(observation), vector)


_Frames = _Vectors | _Pixels | _Combined


class _ContinuousActions:
    """Numbers float32 ``[A]``, clipped to a Box of any rank."""

    def __init__(self, space: gym_spaces.Box) -> None:
        self.size, self.count, self.counts = math.prod(space.shape), 0, ()
        self.bounds = (
            tuple(zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True))
            if space.is_bounded()
            else ()
        )
        self._shape, self._low, self._high = space.shape, space.low, space.high

    def to_environment(self, action: np.ndarray | int) -> np.ndarray:
        shaped = action if np.shape(action) == self._shape else np.reshape(action, self._shape)
        clipped: np.ndarray = np.minimum(np.maximum(shaped, self._low), self._high)
        return clipped


class _DiscreteActions:
    """Whole numbers from 0, wherever the environment's start."""

    def __init__(self, space: gym_spaces.Discrete) -> None:
        self.size, self.count, self.counts = 0, int(space.n), ()
        self.bounds: tuple[tuple[float, float], ...] = ()
        self._start = int(space.start)

    def to_environment(self, action: np.ndarray | int) -> int:
        return self._start + int(action)


class _SeveralActions:
    """Several whole numbers from 0, of any rank: MultiDiscrete, wherever its numbers start, or MultiBinary."""

    def __init__(self, space: gym_spaces.MultiDiscrete[Any] | gym_spaces.MultiBinary) -> None:
        counts, self._start = np.full(space.shape, 2), np.zeros(space.shape, np.int64)
        if isinstance(space, gym_spaces.MultiDiscrete):
            counts, self._start = space.nvec, space.start
        self.size, self.count, self.counts = 0, 0, tuple(np.ravel(counts).tolist())
        self.bounds: tuple[tuple[float, float], ...] = ()
        self._shape, self._dtype = counts.shape, space.dtype

    def to_environment(self, action: np.ndarray | int) -> np.ndarray:
        return (np.reshape(action, self._shape) + self._start).astype(self._dtype)


_Actions = _ContinuousActions | _DiscreteActions | _SeveralActions


def _observation_codec(space: gym_spaces.Space[Any], environment_id: str) -> _Frames:
    leaves = dict(_leaves(space))
    pictures = [keys for keys, leaf in leaves.items() if _is_picture(leaf)]
    is_known = all(isinstance(leaf, _FLATTENED) for leaf in leaves.values())
    if is_known and not pictures and gym_spaces.flatdim(space):
        return _Vectors(space)
    if is_known and len(pictures) == 1:
        (keys,) = pictures
        if len(leaves) == 1:
            return _Pixels(keys, leaves[keys])
        return _Combined(keys, leaves[keys], space)
    raise UnusableEnvironmentError(
        _refusal(
            environment_id,
            "observation",
            space,
            "Box of one number and more, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these, one picture "
            "alone or in these",
            "environment.wrappers with gymnasium.wrappers.FilterObservation: {filter_keys: [KEY, …]} leaves out parts "
            "of a Dict",
        )
    )


def _leaves(
    space: gym_spaces.Space[Any], keys: _Keys = ()
) -> Iterator[tuple[_Keys, gym_spaces.Space[Any]]]:
    """Yields the parts of a space with their keys, in the order in which Gymnasium flattens them."""
    inner: Iterable[tuple[str | int, gym_spaces.Space[Any]]] | None = None
    if isinstance(space, gym_spaces.Dict):
        inner = space.spaces.items()
    elif isinstance(space, gym_spaces.Tuple):
        inner = enumerate(space.spaces)
    if inner is None:
        yield keys, space
    else:
        for key, part in inner:
            yield from _leaves(part, (*keys, key))


def _binary_parts(
    leaves: Sequence[tuple[_Keys, gym_spaces.Space[Any]]],
) -> tuple[tuple[int, int], ...]:
    """Returns starts and ends of the numbers that are 0 or 1 in these parts, flattened and concatenated."""
    ends = [0, *accumulate(gym_spaces.flatdim(leaf) for _, leaf in leaves)]
    return tuple(
        (start, end)
        for start, end, (_, leaf) in zip(ends, ends[1:], leaves, strict=False)
        if not isinstance(leaf, gym_spaces.Box)
    )


def _at(observation: Any, keys: _Keys) -> Any:
    """Returns the part of an observation under these keys."""
    for key in keys:
        observation = observation[key]
    return observation


def _action_codec(space: gym_spaces.Space[Any], environment_id: str) -> _Actions:
    if isinstance(space, gym_spaces.Discrete):
        return _DiscreteActions(space)
    if (
        isinstance(space, gym_spaces.Box)
        and np.issubdtype(space.dtype, np.floating)
        and 0 not in space.shape
    ):
        return _ContinuousActions(space)
    if (
        isinstance(space, gym_spaces.MultiDiscrete | gym_spaces.MultiBinary)
        and 0 not in space.shape
    ):
        return _SeveralActions(space)
    raise UnusableEnvironmentError(
        _refusal(
            environment_id,
            "action",
            space,
            "Box of floats, Discrete, MultiDiscrete, MultiBinary",
            "a wrapper of gymnasium.ActionWrapper can make one of it, such as MultiDiscrete of a Tuple",
        )
    )


def _refusal(
    environment_id: str, name: str, space: gym_spaces.Space[Any], supported: str, advice: str
) -> str:
    return (
        f"environment.id = {environment_id!r}: its {name} space is {space}; supported: {supported}; "
        f"{advice}"
    )


def _require_shape(array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"its shape is {array.shape}")


def _described(observation: object) -> str:
    return (
        f"{observation.dtype} of shape {observation.shape}"
        if isinstance(observation, np.ndarray)
        else " ".join(repr(observation).split())[:100]
    )


def _is_picture(space: gym_spaces.Space[Any]) -> bool:
    if not isinstance(space, gym_spaces.Box) or space.dtype != np.uint8:
        return False
    if len(space.shape) not in (2, 3) or (space.high != _BRIGHTEST).any():
        return False
    sides = space.shape[1:] if _is_channels_first(space.shape) else space.shape[:2]
    return min(sides) >= PIXELS_MIN


def _is_channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] <= _CHANNELS_MAX < shape[-1]


def _spaces(frames: _Frames, actions: _Actions, frame_stack: int) -> Spaces:
    shape, frame_shape, stack = frames.frame_shape, frames.frame_shape, 1
    if isinstance(frames, _Vectors):
        frame_shape = ()
    elif isinstance(frames, _Pixels):
        shape, stack = (frame_stack * shape[0], *shape[1:]), frame_stack
    return Spaces(
        shape,
        frame_shape,
        stack,
        frames.beside_shape,
        frames.binary_parts,
        actions.size,
        actions.count,
        actions.counts,
        actions.bounds,
    )


def _time_limit(environment: gymnasium.Env) -> int | None:
    """Returns the limit in steps of the outermost layer. Inner layers may take several per step."""
    limits, repeats = [], 1
    for layer in layers(environment):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(math.ceil(layer._max_episode_steps / repeats))
        elif isinstance(layer, gymnasium.wrappers.AtariPreprocessing):
            repeats *= layer.frame_skip
        elif atari.is_game(layer) and (frames_max := atari.frames_max(layer)):
            limits.append(math.ceil(frames_max / (repeats * atari.frame_skip_min(layer))))
    return min(limits) if limits else None
