"""An open episode's whole state, taken from one process and restored in another, where it continues bit for bit.

An actor that resets in each call never sees the steps after ``fragment_steps``. The required state depends on the
simulator. Each known simulator has a store. See docs/decisions/episodes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np

from lambda_actor.atari import AleState, AtariPreprocessingState, is_game
from lambda_actor.errors import EpisodeStateError, UnusableEnvironmentError, describe_error

State = dict[str, np.ndarray]

_STATELESS_WRAPPERS = (
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.ClipAction,
    gymnasium.wrappers.ClipReward,
    gymnasium.wrappers.RescaleAction,
    gymnasium.wrappers.FilterObservation,
    gymnasium.wrappers.FlattenObservation,
    gymnasium.wrappers.DtypeObservation,
    gymnasium.wrappers.GrayscaleObservation,
    gymnasium.wrappers.ReshapeObservation,
    gymnasium.wrappers.RescaleObservation,
    gymnasium.wrappers.ResizeObservation,
)
_SPANNING_WRAPPERS = (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward)


class EpisodeStore(Protocol):
    """Takes the open episode's state out of an environment and puts it back, right after a reset."""

    def get_state(self) -> State: ...

    def set_state(self, state: Mapping[str, np.ndarray]) -> None: ...


def layers(environment: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """Yields the layers from the outermost wrapper to the bare environment."""
    while True:
        yield environment
        if not isinstance(environment, gymnasium.Wrapper):
            return
        environment = environment.env


def episode_stores(environment: gymnasium.Env) -> list[EpisodeStore]:
    """Returns the stores that together hold a whole episode, the outermost layer's first.

    Raises:
        EpisodeStateError: A layer keeps an unknown state.
        UnusableEnvironmentError: A wrapper's state spans episodes.
    """
    stores: list[EpisodeStore] = []
    for layer in layers(environment):
        if hasattr(layer, "get_state") and hasattr(layer, "set_state"):
            # Its own methods cover it and everything that it wraps.
            return [*stores, _own_state(layer)]
        if isinstance(layer, _SPANNING_WRAPPERS):
            raise UnusableEnvironmentError(
                f"environment.wrappers: {type(layer).__name__} keeps moments across episodes, so that each actor would "
                "see something else; allowed: algorithm.normalize_observations and algorithm.normalize_rewards"
            )
        if type(layer) is gymnasium.wrappers.TimeLimit:
            stores.append(_TimeLimitState(layer))
        elif type(layer) is gymnasium.wrappers.AtariPreprocessing:
            stores.append(AtariPreprocessingState(layer))
        elif isinstance(layer, gymnasium.Wrapper):
            if type(layer) not in _STATELESS_WRAPPERS:
                raise EpisodeStateError(
                    f"wrapper {type(layer).__name__} offers no get_state() and set_state()"
                )
        else:
            stores.append(_builtin_store(layer))
    return stores


def _own_state(layer: gymnasium.Env) -> EpisodeStore:
    """Tries an environment's own methods, because unrelated methods may have these names.

    Raises:
        EpisodeStateError: They do not return numbers by name.
    """
    store = _UserState(layer)
    try:
        layer.reset(seed=0)
        store.get_state()
    except Exception as error:
        raise EpisodeStateError(
            f"{type(layer).__name__}.get_state() after reset() raised {describe_error(error)}"
        ) from error
    return store


def _builtin_store(environment: gymnasium.Env) -> EpisodeStore:
    module = type(environment).__module__
    if module.startswith("gymnasium.envs.mujoco."):
        return MujocoState(environment)
    if module.startswith("gymnasium.envs.classic_control."):
        return _ClassicControlState(environment)
    if is_game(environment):
        return AleState(environment)
    raise EpisodeStateError(f"{type(environment).__name__} offers no get_state() and set_state()")


class _UserState:
    """A user's environment that offers ``get_state() -> dict of arrays`` and ``set_state(dict)``."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def get_state(self) -> State:
        state = self._environment.get_state()
        return {str(name): _plain_array(name, value) for name, value in state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._environment.set_state({name: value.copy() for name, value in state.items()})


def _plain_array(name: str, value: object) -> np.ndarray:
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise EpisodeStateError(
            f"get_state()[{name!r}] is {type(value).__name__}; allowed: numbers and arrays of them"
        )
    return array


class _TimeLimitState:
    def __init__(self, wrapper: gymnasium.wrappers.TimeLimit) -> None:
        self._wrapper = wrapper

    def get_state(self) -> State:
        return {"elapsed_steps": np.array(self._wrapper._elapsed_steps, dtype=np.int64)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._wrapper._elapsed_steps = int(state["elapsed_steps"])  # type: ignore[assignment]  # typed as it begins: None


class MujocoState:
    """The integration state before the last step, and that step's action.

    Attributes:
        library: The module `mujoco`.

    MuJoCo keeps more than `mj_getState` returns: rewards and observations read quantities (body positions, contact
    forces) that the *last* step computed on its way. So a restore sets the state from before that step and repeats the
    step, which restores every derived quantity exactly.
    """

    def __init__(self, environment: Any) -> None:
        # Imported only now, because other environments do not need it.
        import mujoco

        self.library = mujoco
        self._environment = environment
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._before = np.empty(mujoco.mj_stateSize(environment.model, self._spec))
        self._action = np.zeros(environment.action_space.shape)
        self._step = environment.step
        # In front of the bare environment's step, behind wrappers that clip or rescale the action.
        environment.step = self._recorded_step

    def record(self, action: np.ndarray) -> None:
        """Records that the environment now takes a step with an action."""
        self.library.mj_getState(
            self._environment.model, self._environment.data, self._before, self._spec
        )
        self._action = action

    def _recorded_step(self, action: np.ndarray) -> Any:
        self.record(action)
        return self._step(action)

    def get_state(self) -> dict[str, np.ndarray]:
        return {"before_last_step": self._before.copy(), "last_action": np.array(self._action)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        before = np.ascontiguousarray(state["before_last_step"], dtype=np.float64)
        self.library.mj_setState(
            self._environment.model, self._environment.data, before, self._spec
        )
        self._recorded_step(state["last_action"].copy())


class _ClassicControlState:
    """Gymnasium's classic control: the attribute ``state`` is everything that a step reads."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def get_state(self) -> State:
        return {"state": np.array(self._environment.state)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._environment.state = state["state"].copy()
