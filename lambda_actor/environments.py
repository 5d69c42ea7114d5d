"""Environments for actors: made by name, with known spaces and episodes that can be left open."""

from __future__ import annotations

import inspect
import json
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
_STEPS_PROPOSED = 1000
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
        if frame_stack is not None and frame_stack > 1 and not isinstance(self._frames, _Pixels):
            raise UnusableEnvironmentError(
                f"environment.frame_stack = {frame_stack}: {environment_id} shows "
                + (
                    "a picture beside something; allowed: 1 | null, or a wrapper that puts frames on the picture's "
                    "channels"
                    if isinstance(self._frames, _Combined)
                    else "no pixels; allowed: 1 | null, or environment.wrappers with "
                    "gymnasium.wrappers.FrameStackObservation"
                )
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
                `step`. Or it takes no seed.
        """
        try:
            observation, told_beside = self.gymnasium_environment.reset(seed=seed)
        except TypeError as error:
            if old := _old_reset(self.gymnasium_environment):
                raise UnusableEnvironmentError(old) from error
            raise
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

    def outside_space(self, vectors: np.ndarray) -> str:
        """Describes the first number of these frames, float32 ``[T, O]``, outside the observation space.

        Returns:
            The number and the allowed range, for users; "" if all are inside.
        """
        space = gym_spaces.flatten_space(self._space)
        assert isinstance(space, gym_spaces.Box)
        low, high = (np.ravel(bound).astype(np.float32) for bound in (space.low, space.high))
        wrong = np.argwhere((vectors < low) | (vectors > high))
        if not len(wrong):
            return ""
        step, number = wrong[0]
        return (
            f"number {number} of one was {vectors[step, number]:g}, and the observation space allows "
            f"{low[number]:g} to {high[number]:g}; mend the space, or what the environment returns"
        )

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
    except _UnsupportedObservationError as error:
        raise UnusableEnvironmentError(
            f"{error}{_example(environment, environment_id, options, error.keys)}"
        ) from error
    except UnusableEnvironmentError:
        raise
    except Exception as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r} cannot be used: {told(error)}"
            f"{making.mujoco_remedy(error)}"
        ) from error


class _UnsupportedObservationError(UnusableEnvironmentError):
    """No network supports all observations.

    Attributes:
        keys: Keys to keep with `gymnasium.wrappers.FilterObservation`; empty if that does not help.
    """

    def __init__(self, text: str, keys: Sequence[str | int]) -> None:
        super().__init__(text)
        self.keys = keys


def _example(
    environment: gymnasium.Env,
    environment_id: str,
    options: Mapping[str, Any],
    keys: Sequence[str | int],
) -> str:
    """Returns all settings that such an environment needs, as YAML to paste; empty if no filter helps."""
    if not keys:
        return ""
    section = {"id": environment_id, **options}
    if not _is_saved(environment) and _time_limit(environment) is None:
        # For example MiniGrid's own limit, which Gymnasium does not know.
        limit = getattr(environment.unwrapped, "max_steps", None)
        section["max_episode_steps"] = (
            limit if isinstance(limit, int) and limit > 0 else _STEPS_PROPOSED
        )
    wrappers = [
        {path: arguments} if arguments else path for path, arguments in options.get("wrappers", ())
    ]
    section["wrappers"] = [
        *wrappers,
        {"gymnasium.wrappers.FilterObservation": {"filter_keys": list(keys)}},
    ]
    # JSON is YAML.
    lines = [f"  {name}: {json.dumps(value)}" for name, value in section.items()]
    return "\n".join(["; all that it needs:", "environment:", *lines])


def _is_saved(environment: gymnasium.Env) -> bool:
    try:
        return bool(episode_stores(environment))
    except EpisodeStateError:
        return False


class _Vectors:
    """Observations of numbers, of any rank, as float32 ``[O]``."""

    binary_parts: tuple[tuple[int, int], ...] = ()

    def __init__(self, space: gym_spaces.Box) -> None:
        self.shape = space.shape
        self.frame_shape: tuple[int, ...] = (math.prod(space.shape),)

    def to_frame(self, observation: object) -> np.ndarray:
        # A copy, because some environments reuse the array for the next observation.
        array = np.array(observation, dtype=np.float32)
        _require_shape(array, self.shape)
        return array.reshape(-1)


class _Pixels:
    """Pictures ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]`` as uint8 ``[C, H, W]``."""

    binary_parts: tuple[tuple[int, int], ...] = ()

    def __init__(self, space: gym_spaces.Box) -> None:
        self.shape = space.shape
        self._order = None
        if len(space.shape) == 3 and not _is_channels_first(space.shape):
            self._order = (2, 0, 1)
        self.frame_shape: tuple[int, ...] = self.to_frame(np.zeros(space.shape, np.uint8)).shape

    def to_frame(self, observation: object) -> np.ndarray:
        array = np.asarray(observation)
        _require_shape(array, self.shape)
        if array.dtype != np.uint8:
            raise TypeError(f"it is {array.dtype}")
        if array.ndim == 2:
            array = array[None]
        return np.array(array if self._order is None else array.transpose(self._order), order="C")


class _Flattened:
    """Several parts, or whole numbers, flattened by `gymnasium.spaces.flatten` to float32 ``[O]``."""

    def __init__(self, space: gym_spaces.Space[Any]) -> None:
        self._space = space
        self.shape: tuple[int, ...] = (gym_spaces.flatdim(space),)
        self.frame_shape = self.shape
        self.binary_parts = _binary_parts(list(_leaves(space)))

    def to_frame(self, observation: object) -> np.ndarray:
        array = np.array(gym_spaces.flatten(self._space, observation), np.float32)
        _require_shape(array, self.shape)
        return array


class _OnlyPicture(_Pixels):
    """The only part of a Dict or Tuple, as pixels."""

    def __init__(self, keys: tuple[str | int, ...], space: gym_spaces.Box) -> None:
        self._keys: tuple[str | int, ...] = ()
        super().__init__(space)
        self._keys = keys

    def to_frame(self, observation: Any) -> np.ndarray:
        return super().to_frame(_at(observation, self._keys))


class _Combined:
    """One picture of a Dict or Tuple and everything else in it, flattened, as uint8 ``[1, 1, Y]``."""

    def __init__(self, keys: _Keys, picture: gym_spaces.Box, space: gym_spaces.Space[Any]) -> None:
        self._picture = _OnlyPicture(keys, picture)
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


_Frames = _Vectors | _Pixels | _Flattened | _Combined


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
        self._start = int(space.start)

    def to_environment(self, action: np.ndarray | int) -> int:
        return self._start + int(action)


class _SeveralActions:
    """Several whole numbers from 0, of any rank: MultiDiscrete, wherever its numbers start, or MultiBinary."""

    def __init__(self, space: gym_spaces.MultiDiscrete[Any] | gym_spaces.MultiBinary) -> None:
        counts, self._start = np.full(space.shape, 2), np.zeros(space.shape, np.int64)
        if isinstance(space, gym_spaces.MultiDiscrete):
            counts, self._start = space.nvec, space.start
        self.size, self.count, self.counts = 0, 0, tuple(int(one) for one in np.ravel(counts))
        self._shape, self._dtype = counts.shape, space.dtype

    def to_environment(self, action: np.ndarray | int) -> np.ndarray:
        return (np.reshape(action, self._shape) + self._start).astype(self._dtype)


_Actions = _ContinuousActions | _DiscreteActions | _SeveralActions


def _observation_codec(space: gym_spaces.Space[Any], environment_id: str) -> _Frames:
    leaves = list(_leaves(space))
    pictures = [
        keys for keys, leaf in leaves if isinstance(leaf, gym_spaces.Box) and _is_picture(leaf)
    ]
    usable = [
        keys for keys, leaf in leaves if isinstance(leaf, _FLATTENED) and keys not in pictures
    ]
    if len(usable) == len(leaves) and sum(gym_spaces.flatdim(leaf) for _, leaf in leaves) > 0:
        return _Vectors(space) if isinstance(space, gym_spaces.Box) else _Flattened(space)
    if len(pictures) == len(leaves) == 1:
        ((keys, picture),) = leaves
        assert isinstance(picture, gym_spaces.Box)
        return _OnlyPicture(keys, picture) if keys else _Pixels(picture)
    if len(pictures) == 1 and len(usable) + 1 == len(leaves):
        keys = pictures[0]
        picture = dict(leaves)[keys]
        assert isinstance(picture, gym_spaces.Box)
        return _Combined(keys, picture, space)
    advice, choice = _observation_advice([keys for keys, _ in leaves], pictures, usable)
    raise _UnsupportedObservationError(
        _refusal(
            environment_id,
            "observation",
            space,
            "Box of one number and more, Discrete, MultiDiscrete, MultiBinary, Dict "
            "and Tuple of these, one picture alone or in these",
            advice,
        ),
        choice,
    )


def _observation_advice(
    leaves: list[_Keys], pictures: list[_Keys], usable: list[_Keys]
) -> tuple[str, Sequence[str | int]]:
    """Returns advice for an unsupported space, and the first choice of keys to keep, if there is one.

    Args:
        leaves: The space's parts with their keys.
        pictures: The parts that are pictures.
        usable: Other usable parts.
    """
    several = (
        ""
        if len(pictures) < 2
        else "several pictures ("
        + ", ".join(".".join(map(str, keys)) for keys in pictures)
        + ") are not seen at once; "
    )
    supported = {*pictures, *usable}
    beside = {keys[0] for keys in usable if keys} - {
        keys[0] for keys in leaves if keys and keys not in supported
    }
    proposed = [sorted(beside | {keys[0]}) for keys in pictures if keys] + [sorted(beside)] * bool(
        beside
    )

    def is_supported(choice: Sequence[str | int]) -> bool:
        kept = [keys for keys in leaves if keys[0] in choice]
        return set(kept) <= supported and sum(keys in pictures for keys in kept) <= 1

    choices = [choice for choice in dict.fromkeys(map(tuple, proposed)) if is_supported(choice)]
    if not choices:
        return f"{several}a wrapper of gymnasium.ObservationWrapper can make a Box of it", ()
    filters = " or ".join(f"{{filter_keys: [{', '.join(map(str, keys))}]}}" for keys in choices)
    return (
        f"{several}environment.wrappers with gymnasium.wrappers.FilterObservation: {filters} leaves what is "
        "supported"
    ), choices[0]


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


def _is_picture(space: gym_spaces.Box) -> bool:
    if (
        space.dtype != np.uint8
        or len(space.shape) not in (2, 3)
        or (space.high != _BRIGHTEST).any()
    ):
        return False
    sides = (
        space.shape[1:]
        if len(space.shape) == 3 and _is_channels_first(space.shape)
        else space.shape[:2]
    )
    return min(sides) >= PIXELS_MIN


def _is_channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] <= _CHANNELS_MAX < shape[-1]


def _spaces(frames: _Frames, actions: _Actions, frame_stack: int) -> Spaces:
    acted: dict[str, Any] = {
        "action_size": actions.size,
        "action_count": actions.count,
        "action_counts": actions.counts,
        "action_bounds": getattr(actions, "bounds", ()),
    }
    if isinstance(frames, _Combined):
        return Spaces(
            frames.frame_shape,
            frames.frame_shape,
            beside_shape=frames.beside_shape,
            binary_parts=frames.binary_parts,
            **acted,
        )
    if not isinstance(frames, _Pixels):
        return Spaces(frames.frame_shape, binary_parts=frames.binary_parts, **acted)
    channels, height, width = frames.frame_shape
    return Spaces((frame_stack * channels, height, width), frames.frame_shape, frame_stack, **acted)


def _old_reset(environment: gymnasium.Env) -> str:
    """Describes a layer whose `reset` lacks an argument of Gymnasium's, and its place; "" if there is none."""
    for place, layer in enumerate(layers(environment)):
        with suppress(ValueError, TypeError):
            signature = inspect.signature(layer.reset)
            takes = signature.parameters.values()
            # Wrappers pass on both.
            missing = [
                name
                for name in ("seed", "options")[: 2 if place else 1]
                if name not in signature.parameters
            ]
            if missing and not any(one.kind is one.VAR_KEYWORD for one in takes):
                name = f"{type(layer).__name__}.reset"
                return (
                    f"{name}{signature} takes no {' and no '.join(missing)}{place_of(type(layer).reset)}; allowed: "
                    "def reset(self, *, seed=None, options=None)"
                )
    return ""


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
