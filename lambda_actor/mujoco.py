"""Gymnasium's MuJoCo environments: their episodes' state. MuJoCo is loaded when the first such environment is met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np


def is_mujoco(environment: gymnasium.Env) -> bool:
    """Whether that bare environment is one of Gymnasium's MuJoCo environments."""
    return type(environment).__module__.startswith("gymnasium.envs.mujoco.")


class MujocoState:
    """The integration state before the last step, and that step's action.

    Attributes:
        library: The module `mujoco`.

    MuJoCo keeps more than `mj_getState` gives: rewards and observations read quantities (body positions, contact
    forces) that the *last* step computed on its way. Restoring sets the state from before it and takes that step
    again, which leaves every derived quantity exactly as it was.
    """

    def __init__(self, environment: Any) -> None:
        # Only now: whoever acts in another environment need not load it.
        import mujoco

        self.library = mujoco
        self._environment = environment
        self._spec = mujoco.mjtState.mjSTATE_INTEGRATION
        self._before = np.empty(mujoco.mj_stateSize(environment.model, self._spec))
        self._action = np.zeros(environment.action_space.shape)
        self._step = environment.step
        # In front of the bare environment's own step: behind wrappers that clip or rescale the action.
        environment.step = self._recorded_step

    def record(self, action: np.ndarray) -> None:
        """The environment takes a step with that action now."""
        self.library.mj_getState(self._environment.model, self._environment.data, self._before, self._spec)
        self._action = action

    def _recorded_step(self, action: np.ndarray) -> Any:
        self.record(action)
        return self._step(action)

    def get_state(self) -> dict[str, np.ndarray]:
        return {"before_last_step": self._before.copy(), "last_action": np.array(self._action)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        before = np.ascontiguousarray(state["before_last_step"], dtype=np.float64)
        if before.shape != self._before.shape:
            raise ValueError(f"MuJoCo state of {before.shape[0]} numbers; this model has {self._before.shape[0]}")
        self.library.mj_setState(self._environment.model, self._environment.data, before, self._spec)
        self._recorded_step(state["last_action"].copy())
