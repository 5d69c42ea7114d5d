"""Environments as an actor needs them: made by name, and able to leave an episode open between invocations.

An actor that resets at each call never sees what comes after ``fragment_steps``. Therefore an episode's whole state
can be taken out of one process and put into another, and continues there bit for bit.

MuJoCo keeps more state than `mj_getState` gives: rewards and observations read quantities (body positions, contact
forces) that the *last* step computed on its way. So what is saved is the integration state from *before* the last
step, with that step's action; restoring sets it and takes the step again, which leaves every derived quantity exactly
as it was. See docs/decisions/0002-episode-state.md.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Protocol

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from lambda_actor.errors import EpisodeStateError, UnusableEnvironmentError

State = dict[str, np.ndarray]

_STATELESS_WRAPPERS = (
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.ClipAction,
    gymnasium.wrappers.RescaleAction,
    gymnasium.wrappers.FlattenObservation,
    gymnasium.wrappers.DtypeObservation,
    gymnasium.wrappers.ReshapeObservation,
    gymnasium.wrappers.RescaleObservation,
)


class EpisodeStore(Protocol):
    """Takes the open episode's state out of an environment and puts it back."""

    def get_state(self) -> State: ...

    def set_state(self, state: Mapping[str, np.ndarray]) -> None: ...


class ActorEnvironment:
    """One environment with float32 observations ``[O]`` and actions ``[A]``, clipped to the action space.

    Attributes:
        observation_size: ``O``.
        action_size: ``A``.
        episode_steps_max: The time limit in steps, or None where episodes can be of any length.
    """

    def __init__(self, environment: gymnasium.Env, environment_id: str) -> None:
        _check_spaces(environment, environment_id)
        self.environment_id = environment_id
        self._environment = environment
        self.observation_size = int(environment.observation_space.shape[0])
        self.action_size = int(environment.action_space.shape[0])
        self._action_low = environment.action_space.low
        self._action_high = environment.action_space.high
        self.episode_steps_max = _time_limit(environment)
        self._stores: list[EpisodeStore] | None = None
        self._store_error = ""
        try:
            self._stores = _episode_stores(environment)
        except EpisodeStateError as error:
            self._store_error = str(error)

    @property
    def can_save_episode(self) -> bool:
        """Whether an open episode can travel to another process."""
        return self._stores is not None

    @property
    def cannot_save_reason(self) -> str:
        return self._store_error

    def reset(self, seed: int) -> np.ndarray:
        """Starts a new episode from ``seed`` alone; returns its first observation, float32 ``[O]``.

        Raises:
            UnusableEnvironmentError: The observation has another shape than the space says; also in `step`.
        """
        observation, _ = self._environment.reset(seed=seed)
        return self._observation(observation)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """One step with ``action`` (float32 ``[A]``) clipped to the action space.

        Returns:
            observation (float32 ``[O]``), reward, terminated, truncated.
        """
        clipped = np.minimum(np.maximum(action, self._action_low), self._action_high)
        observation, reward, terminated, truncated, _ = self._environment.step(clipped)
        return self._observation(observation), float(reward), bool(terminated), bool(truncated)

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
        # Wrappers check that reset() was called, and some count from there.
        self._environment.reset(seed=0)
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

    def _observation(self, observation: object) -> np.ndarray:
        # A copy: some environments write the next observation into the same array.
        copied = np.array(observation, dtype=np.float32)
        if copied.shape != (self.observation_size,):
            raise UnusableEnvironmentError(f"{self.environment_id} returned an observation of shape {copied.shape}; "
                                           f"its observation space says ({self.observation_size},)")
        return copied


def make_environment(environment_id: str) -> ActorEnvironment:
    """The environment of that name.

    Args:
        environment_id: A Gymnasium id (``Hopper-v5``), ``module:factory`` for a callable of the user's own that
            returns a `gymnasium.Env`, or ``module:Id-v0`` for an id that importing ``module`` registers.

    Raises:
        UnusableEnvironmentError: It cannot be imported or made, or its spaces are not supported.
    """
    factory = _user_factory(environment_id)
    try:
        environment = factory() if factory else gymnasium.make(environment_id, disable_env_checker=True)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.id = {environment_id!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(environment, gymnasium.Env):
        raise UnusableEnvironmentError(f"environment.id = {environment_id!r}: the factory returned "
                                f"{type(environment).__name__}, not a gymnasium.Env")
    return ActorEnvironment(environment, environment_id)


def _user_factory(environment_id: str):
    module_name, colon, attribute = environment_id.partition(":")
    if not colon:
        return None
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(f"environment.id = {environment_id!r}: module {module_name!r} does not import: "
                                f"{type(error).__name__}: {error}") from error
    factory = getattr(module, attribute, None)
    if factory is None and attribute in gymnasium.registry:
        return lambda: gymnasium.make(attribute, disable_env_checker=True)
    if not callable(factory):
        raise UnusableEnvironmentError(f"environment.id = {environment_id!r}: module {module_name!r} has no callable "
                                f"{attribute!r} and registers no such id")
    return factory


def _check_spaces(environment: gymnasium.Env, environment_id: str) -> None:
    for name, space in (("observation", environment.observation_space), ("action", environment.action_space)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise UnusableEnvironmentError(f"environment.id = {environment_id!r}: its {name} space is {space}; "
                                    "supported is Box of rank 1")


def _wrapper_chain(environment: gymnasium.Env):
    """From the outermost wrapper to the bare environment."""
    while True:
        yield environment
        if not isinstance(environment, gymnasium.Wrapper):
            return
        environment = environment.env


def _time_limit(environment: gymnasium.Env) -> int | None:
    limits = [layer._max_episode_steps for layer in _wrapper_chain(environment)
              if isinstance(layer, gymnasium.wrappers.TimeLimit)]
    return min(limits) if limits else None


def _episode_stores(environment: gymnasium.Env) -> list[EpisodeStore]:
    stores: list[EpisodeStore] = []
    for layer in _wrapper_chain(environment):
        if _offers_state(layer):
            # Its own methods answer for it and for everything that it wraps.
            return [*stores, _UserState(layer)]
        if type(layer) is gymnasium.wrappers.TimeLimit:
            stores.append(_TimeLimitState(layer))
        elif isinstance(layer, gymnasium.Wrapper):
            if type(layer) not in _STATELESS_WRAPPERS:
                raise EpisodeStateError(f"wrapper {type(layer).__name__} offers no get_state() and set_state()")
        else:
            stores.append(_builtin_store(layer))
    return stores


def _offers_state(layer: gymnasium.Env) -> bool:
    """Whether it has ``get_state()`` and ``set_state(state)``; MuJoCo's own ``set_state(qpos, qvel)`` is another."""
    get_state, set_state = getattr(layer, "get_state", None), getattr(layer, "set_state", None)
    if not (callable(get_state) and callable(set_state)):
        return False
    required = [p for p in inspect.signature(set_state).parameters.values()
                if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(required) == 1


def _builtin_store(environment: gymnasium.Env) -> EpisodeStore:
    module = type(environment).__module__
    if module.startswith("gymnasium.envs.mujoco."):
        return _MujocoState(environment)
    if module.startswith("gymnasium.envs.classic_control."):
        return _ClassicControlState(environment)
    raise EpisodeStateError(f"{type(environment).__name__} offers no get_state() and set_state()")


class _UserState:
    """A user's environment that offers ``get_state() -> dict of arrays`` and ``set_state(dict)``."""

    def __init__(self, environment: gymnasium.Env) -> None:
        self._environment = environment

    def get_state(self) -> State:
        state = self._environment.get_state()
        if not isinstance(state, Mapping):
            raise EpisodeStateError(f"{type(self._environment).__name__}.get_state() returned "
                                    f"{type(state).__name__}, not a dict of arrays")
        return {str(name): _plain_array(name, value) for name, value in state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._environment.set_state({name: value.copy() for name, value in state.items()})


def _plain_array(name: str, value: object) -> np.ndarray:
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise EpisodeStateError(f"get_state()[{name!r}] is {array.dtype}; supported are numbers and arrays of them")
    return array


class _TimeLimitState:
    def __init__(self, wrapper: gymnasium.wrappers.TimeLimit) -> None:
        self._wrapper = wrapper

    def get_state(self) -> State:
        return {"elapsed_steps": np.array(self._wrapper._elapsed_steps, dtype=np.int64)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._wrapper._elapsed_steps = int(state["elapsed_steps"])


class _MujocoState:
    """Gymnasium's MuJoCo environments: the integration state before the last step, and that step's action."""

    def __init__(self, environment: gymnasium.Env) -> None:
        self._environment = environment
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._before = np.empty(mujoco.mj_stateSize(environment.model, self._spec))
        self._action = np.zeros(environment.action_space.shape)
        self._step = environment.step
        # In front of the bare environment's own step: behind wrappers that clip or rescale the action.
        environment.step = self._recorded_step

    def _recorded_step(self, action: np.ndarray):
        mujoco.mj_getState(self._environment.model, self._environment.data, self._before, self._spec)
        self._action = action
        return self._step(action)

    def get_state(self) -> State:
        return {"before_last_step": self._before.copy(), "last_action": np.array(self._action)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        before = np.ascontiguousarray(state["before_last_step"], dtype=np.float64)
        if before.shape != self._before.shape:
            raise ValueError(f"MuJoCo state of {before.shape[0]} numbers; this model has {self._before.shape[0]}")
        mujoco.mj_setState(self._environment.model, self._environment.data, before, self._spec)
        self._recorded_step(state["last_action"].copy())


class _ClassicControlState:
    """Gymnasium's classic control: the attribute ``state`` is all that a step reads."""

    def __init__(self, environment: gymnasium.Env) -> None:
        self._environment = environment

    def get_state(self) -> State:
        return {"state": np.array(self._environment.state)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        fresh = np.shape(self._environment.state)
        if state["state"].shape != fresh:
            raise ValueError(f"a state of shape {state['state'].shape}; this environment's has {fresh}")
        self._environment.state = state["state"].copy()
