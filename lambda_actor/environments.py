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
from lambda_actor.errors import EpisodeStateError, UnusableEnvironmentError, describe_error
from lambda_actor.fast import games, mujoco_v5
from lambda_actor.fast.steps import LeanStep, why_off
from lambda_actor.frames import combined
from lambda_actor.guarding import open_environments
from lambda_actor.spaces import Spaces

PIXELS_MIN = 16
"""Minimum sides of a picture. Smaller arrays are vectors."""
_CHANNELS_MAX = 4
_BRIGHTEST = 255
_FLATTENED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)
"""Supported spaces of an observation's numbers. All but Box become zeros and ones."""
_Keys = tuple[str | int, ...]
MASK = "action_mask"
"""Key of the action mask in an observation, or in the info of ``reset`` and ``step``."""


class ActorEnvironment:
    """One environment in the form that networks use.

    Its frames are uint8 ``[C, H, W]`` if it shows pixels, uint8 ``[1, 1, Y]`` if it shows a picture with a vector (see
    `lambda_actor.frames.combined`), otherwise vectors float32 ``[O]``. Its actions are float32 ``[A]``, clipped to −1
    and 1 and rescaled to the action space, or just clipped to it; or whole numbers from 0, one or ``[A]`` of them.

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
        rescale_actions: bool = False,
    ) -> None:
        """Reads the environment's spaces.

        Args:
            environment: The environment with all its wrappers.
            environment_id: For messages, and to find a replay's environment.
            preprocessing: ``atari`` or ``none``.
            frame_stack: Frames of pixels per observation; None = three with ``atari``, otherwise one. Always one for a
                picture with a vector.
            rescale_actions: Whether a continuous action's range is −1 to 1, if the action space is bounded.

        Raises:
            UnusableEnvironmentError: No policy can act in its spaces.
        """
        self.environment_id = environment_id
        self.preprocessing = preprocessing
        self.gymnasium_environment = environment
        self._space = environment.observation_space
        self._actions = _action_codec(environment.action_space, environment_id, rescale_actions)
        self._is_mask_observed = False
        if isinstance(self._space, gym_spaces.Dict) and MASK in self._space.spaces:
            # The mask limits the choices and is not observed.
            self._is_mask_observed = True
            parts = {key: part for key, part in self._space.items() if key != MASK}
            self._space = gym_spaces.Dict(parts)
        self.action_mask: np.ndarray | None = None
        self._frames = _observation_codec(self._space, environment_id)
        if (frame_stack or 1) > 1 and not isinstance(self._frames, _Pixels):
            raise UnusableEnvironmentError(
                f"environment.frame_stack = {frame_stack}: {environment_id} does not show pixels alone; allowed: "
                "1 | null, or environment.wrappers with gymnasium.wrappers:FrameStackObservation"
            )
        stack = frame_stack or (atari.FRAME_STACK if preprocessing == "atari" else 1)
        self.spaces = Spaces(
            **self._frames.fields(stack),
            **self._actions.fields,
            has_action_mask=self._is_mask_observed,
        )
        self.episode_steps_max = _time_limit(environment)
        self._stores: list[EpisodeStore] = []
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
        open_environments.add(self)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of an observation: a Box's own shape, the vector's for other spaces, or the pixels'.

        Pixels are stacked. A picture with a vector has ``[1, 1, Y]``.
        """
        return self.spaces.observation_shape if self.spaces.is_pixels else self._frames.shape

    @property
    def can_save_episode(self) -> bool:
        """Whether an open episode can travel to another process."""
        return not self.cannot_save_reason

    def reset(self, seed: int) -> np.ndarray:
        """Starts a new episode from ``seed`` alone. Returns its first frame.

        Raises:
            UnusableEnvironmentError: The observation does not fit its space, or an action mask is invalid; also in
                `step`.
        """
        observation, info = self.gymnasium_environment.reset(seed=seed)
        if not self._was_reset and MASK in info:
            self.spaces = replace(self.spaces, has_action_mask=True)
        self._was_reset = True
        self._choose_step()
        self._take_mask(observation, info)
        return self.to_frame(observation)

    @property
    def rescales_actions(self) -> bool:
        """Whether a policy's actions have another range than the environment's."""
        return self.action_scale is not None

    @property
    def action_scale(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Middle and half width of the action space, of its shape, if actions are rescaled from −1 to 1."""
        return getattr(self._actions, "scale", None)

    def to_environment(self, action: np.ndarray | int) -> Any:
        """Converts a policy's action for the environment: rescaled, clipped and shaped, or a whole number."""
        return self._actions.to_environment(action)

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        """Takes one step with ``action``.

        Returns:
            frame, reward, terminated, truncated.

        Raises:
            UnusableEnvironmentError: The reward is not one number, or it does not say whether the episode is over.
        """
        taken = self._actions.to_environment(action)
        if self._lean_step is not None:
            return self._lean_step(taken)
        results: Any = self.gymnasium_environment.step(taken)
        observation, reward, terminated, truncated, info = results
        if not isinstance(reward, float):
            reward = self._one_number(reward)
        if not isinstance(terminated, bool):
            terminated = self._flag("terminated", terminated)
        if not isinstance(truncated, bool):
            truncated = self._flag("truncated", truncated)
        if not (terminated or truncated):
            # No choice follows an episode's last step.
            self._take_mask(observation, info)
        return self.to_frame(observation), float(reward), terminated, truncated

    def get_state(self) -> State:
        """Returns the open episode's state, after at least one step. Only if `can_save_episode`."""
        return {
            f"{i}.{name}": value
            for i, store in enumerate(self._stores)
            for name, value in store.get_state().items()
        } | ({} if self.action_mask is None else {MASK: self.action_mask})

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues the episode that `get_state` saved, here or in another process."""
        # Wrappers require reset(), and some count from it. No seed, because a seed reloads a game, which takes longer
        # than many steps. The state contains the game's generators.
        outermost = self.gymnasium_environment
        is_game = atari.is_game(outermost.unwrapped)
        if is_game and self._lean and self._was_reset:
            outermost = outermost.unwrapped
        outermost.reset(seed=None if is_game else 0)
        self._was_reset = True
        self._choose_step()
        self.action_mask = None
        if MASK in state:
            self.spaces = replace(self.spaces, has_action_mask=True)
            self.action_mask = self.mask_of(state[MASK])
        for i, store in reversed(list(enumerate(self._stores))):
            prefix = f"{i}."
            store.set_state(
                {
                    name[len(prefix) :]: value
                    for name, value in state.items()
                    if name.startswith(prefix)
                }
            )

    def close(self) -> None:
        """Closes the environment and what it has started, once. Ignores errors."""
        if self in open_environments:
            open_environments.remove(self)
            with suppress(Exception, SystemExit):
                self.gymnasium_environment.close()

    def _one_number(self, reward: object) -> float:
        """Returns a reward as a float; some environments return an array of one number."""
        try:
            return float(np.asarray(reward).item())
        except (TypeError, ValueError) as error:
            raise UnusableEnvironmentError(
                f"{self.environment_id} returned a reward {_described(reward)}; allowed: one number; a wrapper of "
                "gymnasium.RewardWrapper can make one of it, such as mo_gymnasium.wrappers:LinearReward"
            ) from error

    def _flag(self, name: str, value: object) -> bool:
        """Returns what `step` says of an episode's end as a bool; some environments return NumPy's, or 0 and 1."""
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf" and array.item() in (0, 1):
            return bool(array.item())
        raise UnusableEnvironmentError(
            f"{self.environment_id} returned {name} = {_described(value)} from step(); allowed: True | False"
        )

    def allowed(self, action: np.ndarray | int) -> np.ndarray | int:
        """Returns the action, or with an action mask the first allowed value of each choice."""
        if self.action_mask is None:
            return action
        parts = np.split(self.action_mask, self.spaces.choice_starts[1:])
        chosen = [int(part.argmax()) for part in parts]
        return chosen[0] if self.spaces.action_count else np.array(chosen)

    def mask_of(self, value: Any) -> np.ndarray:
        """Returns an action mask as bool ``[M]``.

        Args:
            value: Zeros and ones or booleans, ``[M]``, or a list or tuple with one mask for each choice.

        Raises:
            UnusableEnvironmentError: It is not a mask, or allows nothing.
        """
        size = sum(self.spaces.choice_counts)
        try:
            flat = np.concatenate(
                [np.ravel(mask) for mask in (value if isinstance(value, tuple | list) else [value])]
            )
            is_mask = 0 < size == flat.size and bool(((flat == 0) | (flat == 1)).all())
        except (ValueError, TypeError):
            is_mask = False
        if not is_mask:
            raise UnusableEnvironmentError(
                f"{self.environment_id} gives an action mask {_described(value)}; allowed: {size} of 0 and 1, one for "
                "each value of each choice of Discrete, MultiDiscrete or MultiBinary actions"
            )
        mask = flat.astype(np.bool_)
        if not np.logical_or.reduceat(mask, self.spaces.choice_starts).all():
            raise UnusableEnvironmentError(
                f"{self.environment_id} gives an action mask that allows no value of a "
                f"choice: {mask.astype(int).tolist()}"
            )
        return mask

    def _take_mask(self, observation: Any, info: Mapping[str, Any]) -> None:
        """Keeps the mask of an observation.

        Raises:
            UnusableEnvironmentError: The environment gives masks at some steps only, or it is no mask.
        """
        mask = observation[MASK] if self._is_mask_observed else info.get(MASK)
        if (mask is not None) != self.spaces.has_action_mask:
            raise UnusableEnvironmentError(
                f'{self.environment_id} gives info["{MASK}"] at some steps only; '
                "allowed: at all steps and resets, or at none"
            )
        self.action_mask = None if mask is None else self.mask_of(mask)

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
        except OverflowError as error:
            raise UnusableEnvironmentError(
                f"{self.environment_id} returned an observation with {error}"
            ) from None
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
    try:
        environment, is_atari = making.make(environment_id, preprocessing, options)
        with making.closed_if_refused(environment):
            return ActorEnvironment(
                environment,
                environment_id,
                "atari" if is_atari else "none",
                options.get("frame_stack"),
                options.get("rescale_actions", False),
            )
    except UnusableEnvironmentError:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r} cannot be made: {describe_error(error)}"
            f"{making.advice(environment_id, error)}"
        ) from error


class _Vectors:
    """Numbers of any rank, whole numbers, or several such parts, as float32 ``[O]``."""

    def __init__(self, space: gym_spaces.Space[Any]) -> None:
        self._space = space
        self._is_box = isinstance(space, gym_spaces.Box)
        self._size = gym_spaces.flatdim(space)
        self.shape = (space.shape or ()) if self._is_box else (self._size,)

    def fields(self, frame_stack: int) -> dict[str, Any]:
        binary_parts = _binary_parts(list(_leaves(self._space)))
        return {"observation_shape": (self._size,), "binary_parts": binary_parts}

    def to_frame(self, observation: Any) -> np.ndarray:
        if not self._is_box:
            observation = gym_spaces.flatten(self._space, observation)
        array = _float32(observation)
        _require_shape(array, self.shape)
        return array.reshape(-1)


class _Pixels:
    """Pictures ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]``, alone or under keys, as uint8 ``[C, H, W]``."""

    def __init__(self, keys: _Keys, space: gym_spaces.Space[Any]) -> None:
        self.shape = space.shape or ()
        self._keys = keys
        height, *_, last = self.shape
        self._order = (0, 1, 2) if _is_channels_first(self.shape) else (2, 0, 1)
        self.frame_shape: tuple[int, ...] = (1, height, last)
        if len(self.shape) == 3:
            self.frame_shape = tuple(self.shape[side] for side in self._order)

    def fields(self, frame_stack: int) -> dict[str, Any]:
        channels, *sides = self.frame_shape
        shape = (frame_stack * channels, *sides)
        return {
            "observation_shape": shape,
            "frame_shape": self.frame_shape,
            "frame_stack": frame_stack,
        }

    def to_frame(self, observation: Any) -> np.ndarray:
        array = np.asarray(_at(observation, self._keys))
        _require_shape(array, self.shape)
        if array.dtype != np.uint8:
            raise TypeError(f"it is {array.dtype}")
        array = array[None] if array.ndim == 2 else array.transpose(self._order)
        return np.array(array, order="C")


class _PixelsAndVectors:
    """One picture of a Dict or Tuple and everything else in it, flattened, as uint8 ``[1, 1, Y]``."""

    def __init__(
        self, keys: _Keys, picture: gym_spaces.Space[Any], space: gym_spaces.Space[Any]
    ) -> None:
        self._picture = _Pixels(keys, picture)
        self._rest = [(others, leaf) for others, leaf in _leaves(space) if others != keys]
        self._size = sum(gym_spaces.flatdim(leaf) for _, leaf in self._rest)
        self.shape = (1, 1, math.prod(self._picture.frame_shape) + 4 * self._size)

    def fields(self, frame_stack: int) -> dict[str, Any]:
        return {
            "observation_shape": self.shape,
            "frame_shape": self.shape,
            "beside_shape": self._picture.frame_shape,
            "binary_parts": _binary_parts(self._rest),
        }

    def to_frame(self, observation: Any) -> np.ndarray:
        parts: Any = [gym_spaces.flatten(leaf, _at(observation, keys)) for keys, leaf in self._rest]
        vector = _float32(np.concatenate(parts))
        _require_shape(vector, (self._size,))
        return combined(self._picture.to_frame(observation), vector)


_Frames = _Vectors | _Pixels | _PixelsAndVectors


class _ContinuousActions:
    """Numbers float32 ``[A]``, clipped to a Box of any rank; or clipped to −1 and 1 and rescaled to the Box.

    Source: RLlib's ``normalize_actions`` and ``unsquash_action``.
    """

    def __init__(self, space: gym_spaces.Box, is_rescaled: bool) -> None:
        bounds = np.stack([np.ravel(space.low), np.ravel(space.high)], 1).tolist()
        self.fields: dict[str, Any] = {
            "action_size": math.prod(space.shape),
            "action_bounds": tuple(map(tuple, bounds)) if space.is_bounded() else (),
        }
        self._shape = space.shape
        self._low = space.low
        self._high = space.high
        self.scale = _rescaling(space) if is_rescaled else None

    def to_environment(self, action: np.ndarray | int) -> np.ndarray:
        shaped = action if np.shape(action) == self._shape else np.reshape(action, self._shape)
        if self.scale is not None:
            middle, half = self.scale
            shaped = middle + half * shaped
        clipped: np.ndarray = np.minimum(np.maximum(shaped, self._low), self._high)
        return clipped


def _rescaling(space: gym_spaces.Box) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns middle and half width of a Box, float32; None if it is −1 to 1 already, or has no finite width."""
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        middle, half = (low + high) / 2, (high - low) / 2
    is_plain = bool((low == -1).all() and (high == 1).all())
    return (middle, half) if np.isfinite(half).all() and not is_plain else None


class _DiscreteActions:
    """Whole numbers from 0, wherever the environment's start."""

    def __init__(self, space: gym_spaces.Discrete) -> None:
        self._start = int(space.start)
        self.fields: dict[str, Any] = {
            "action_count": int(space.n),
            "action_starts": (self._start,),
        }

    def to_environment(self, action: np.ndarray | int) -> int:
        return self._start + int(action)


class _SeveralActions:
    """Several whole numbers from 0, of any rank: MultiDiscrete, wherever its numbers start, or MultiBinary."""

    def __init__(self, space: gym_spaces.MultiDiscrete[Any] | gym_spaces.MultiBinary) -> None:
        counts = np.full(space.shape, 2)
        self._start = np.zeros(space.shape, np.int64)
        if isinstance(space, gym_spaces.MultiDiscrete):
            counts = space.nvec
            self._start = space.start
        self.fields = {
            "action_counts": tuple(np.ravel(counts).tolist()),
            "action_starts": tuple(np.ravel(self._start).tolist()),
        }
        self._shape = counts.shape
        self._dtype = space.dtype

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
        return _PixelsAndVectors(keys, leaves[keys], space)
    raise UnusableEnvironmentError(
        f"environment.id = {environment_id!r}: its observation space is {space}; supported: Box of one number and "
        "more, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these, one picture alone or in these; "
        "gymnasium.wrappers:FilterObservation: {filter_keys: [KEY, …]} in environment.wrappers drops parts of a Dict"
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


def _action_codec(space: gym_spaces.Space[Any], environment_id: str, is_rescaled: bool) -> _Actions:
    if isinstance(space, gym_spaces.Discrete):
        return _DiscreteActions(space)
    if (
        isinstance(space, gym_spaces.Box)
        and np.issubdtype(space.dtype, np.floating)
        and 0 not in space.shape
    ):
        return _ContinuousActions(space, is_rescaled)
    if (
        isinstance(space, gym_spaces.MultiDiscrete | gym_spaces.MultiBinary)
        and 0 not in space.shape
    ):
        return _SeveralActions(space)
    raise UnusableEnvironmentError(
        f"environment.id = {environment_id!r}: its action space is {space}; supported: Box of floats, Discrete, "
        "MultiDiscrete, MultiBinary; a gymnasium.ActionWrapper can make one of it, such as MultiDiscrete of a Tuple"
    )


def _float32(numbers: Any) -> np.ndarray:
    """Returns a copy as float32, because some environments reuse the array for the next observation.

    Raises:
        OverflowError: A finite number is too large.
    """
    array = np.array(numbers, np.float32)
    flat = array.reshape(-1)
    # The sum of squares is a test that costs little; most observations pass it.
    if not math.isfinite(flat.dot(flat)) and np.isinf(flat).any() and np.isfinite(numbers).all():
        raise OverflowError(
            f"{np.abs(numbers).max():.4g}, which is too large for float32; allowed: up to "
            f"{np.finfo(np.float32).max:.4g}"
        )
    return array


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


def _time_limit(environment: gymnasium.Env) -> int | None:
    """Returns the limit in steps of the outermost layer. Inner layers may take several per step."""
    limits = []
    repeats = 1
    for layer in layers(environment):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            limits.append(math.ceil(layer._max_episode_steps / repeats))
        elif isinstance(layer, gymnasium.wrappers.AtariPreprocessing):
            repeats *= layer.frame_skip
        elif atari.is_game(layer) and (steps_max := atari.steps_max(layer)):
            limits.append(math.ceil(steps_max / repeats))
    return min(limits) if limits else None
