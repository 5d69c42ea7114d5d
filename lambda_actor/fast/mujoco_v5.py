"""Lean steps of Gymnasium's MuJoCo environments.

Gymnasium's step passes two wrappers, checks its action and fills a dictionary, which takes a third of the physics'
time. For the environments of `_STEPS`, `lean_step` gives the same observation, reward and end, and leaves the same
state, so either kind of step may follow the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from lambda_actor.episode_state import MujocoState
from lambda_actor.fast.steps import LeanStep, Outcome

_SPEED_MAX = 10.0
"""Observed velocities of Hopper and Walker2d are clipped to this."""


class _MujocoStep(LeanStep):
    """Steps of one environment. A subclass defines observation and reward."""

    has_contact_forces = False
    """Whether the subclass reads contact forces, which MuJoCo computes only on request."""

    def __init__(self, limit: Any, bare: Any, state: MujocoState) -> None:
        """Keeps views of all data that a step reads.

        Args:
            limit: The environment's `TimeLimit`.
            bare: Gymnasium's own environment inside.
            state: Records its steps.
        """
        super().__init__(bare)
        self._limit = limit
        self._state = state
        self._mj_step = state.library.mj_step
        self._mj_contact_forces = state.library.mj_rnePostConstraint
        self._model = bare.model
        self._data = bare.data
        self._frame_skip = bare.frame_skip
        self._dt = float(bare.dt)
        self._control = bare.data.ctrl
        self._positions = bare.data.qpos
        self._velocities = bare.data.qvel
        self._contact_forces = bare.data.cfrc_ext
        self._size = bare.observation_space.shape[0]
        self._steps_max = limit._max_episode_steps
        self._prepare(bare)

    def __call__(self, action: Any) -> Outcome:
        """Takes a step with a clipped action. Returns observation float32, reward, terminated, truncated."""
        self._state.record(action)
        before = self._place()
        self._control[:] = action
        self._mj_step(self._model, self._data, self._frame_skip)
        if self.has_contact_forces:
            self._mj_contact_forces(self._model, self._data)
        reward, terminated = self._outcome((self._place() - before) / self._dt, action)
        elapsed = self._limit._elapsed_steps + 1
        self._limit._elapsed_steps = elapsed
        return self._observation(), reward, terminated, elapsed >= self._steps_max

    def _prepare(self, bare: Any) -> None:
        """Keeps further data for the subclass, and the arrays of an observation as ``_seen``."""
        self._seen: tuple[np.ndarray, ...] = ()

    def _place(self) -> float:
        """Returns the position along its way."""
        return float(self._positions.item(0))

    def _outcome(self, speed: float, action: np.ndarray) -> tuple[float, bool]:
        """Returns the reward, and whether the episode is over."""
        raise NotImplementedError

    def _observation(self) -> np.ndarray:
        return np.concatenate(self._seen, out=np.empty(self._size, np.float32), casting="same_kind")


class _Runner(_MujocoStep):
    """HalfCheetah: rewarded for speed."""

    def _prepare(self, bare: Any) -> None:
        self._forward_weight = float(bare._forward_reward_weight)
        # NumPy multiplies a float32 sum by a Python number in this way.
        self._control_weight = np.float32(bare._ctrl_cost_weight)
        shown = self._positions[int(bare._exclude_current_positions_from_observation) :]
        self._seen = (shown, self._velocities)

    def _outcome(self, speed: float, action: np.ndarray) -> tuple[float, bool]:
        return self._forward_weight * speed - self._control_cost(action), False

    def _control_cost(self, action: np.ndarray) -> float:
        return float(self._control_weight * np.add.reduce(action * action))


class _Walker2d(_Runner):
    """Also rewarded for standing upright."""

    def _prepare(self, bare: Any) -> None:
        super()._prepare(bare)
        self._healthy_reward = float(bare._healthy_reward)
        self._may_fall = bool(bare._terminate_when_unhealthy)
        self._height_min, self._height_max = bare._healthy_z_range
        self._angle_min, self._angle_max = bare._healthy_angle_range
        self._fastest = np.full_like(self._velocities, _SPEED_MAX)
        self._slowest = -self._fastest
        self._clipped = np.empty_like(self._fastest)
        self._seen = (self._seen[0], self._clipped)

    def _observation(self) -> np.ndarray:
        clipped = self._clipped
        np.minimum(
            np.maximum(self._velocities, self._slowest, out=clipped), self._fastest, out=clipped
        )
        return super()._observation()

    def _outcome(self, speed: float, action: np.ndarray) -> tuple[float, bool]:
        is_healthy = self._is_healthy()
        reward = self._forward_weight * speed + is_healthy * self._healthy_reward
        return reward - self._control_cost(action), not is_healthy and self._may_fall

    def _is_healthy(self) -> bool:
        height = self._positions.item(1)
        angle = self._positions.item(2)
        return bool(
            self._height_min < height < self._height_max
            and self._angle_min < angle < self._angle_max
        )


class _Hopper(_Walker2d):
    """Also rewarded for a state within bounds."""

    def _prepare(self, bare: Any) -> None:
        super()._prepare(bare)
        self._state_min, self._state_max = bare._healthy_state_range

    def _is_healthy(self) -> bool:
        if not super()._is_healthy():
            return False
        state = self._positions.tolist()[2:] + self._velocities.tolist()
        # Comparisons with NaN are false on either side.
        return all([self._state_min < number < self._state_max for number in state])


class _Ant(_MujocoStep):
    has_contact_forces = True

    def _prepare(self, bare: Any) -> None:
        self._place_of_body = bare.data.body(bare._main_body).xpos
        self._forward_weight = float(bare._forward_reward_weight)
        self._healthy_reward = float(bare._healthy_reward)
        self._control_weight = np.float32(bare._ctrl_cost_weight)
        self._contact_weight = bare._contact_cost_weight
        self._may_fall = bool(bare._terminate_when_unhealthy)
        self._height_min, self._height_max = bare._healthy_z_range
        self._force_min, self._force_max = bare._contact_force_range
        self._forces = np.empty_like(self._contact_forces)
        shown = self._positions[2 * bare._exclude_current_positions_from_observation :]
        seen_forces = (
            (self._forces[1:].reshape(-1),) if bare._include_cfrc_ext_in_observation else ()
        )
        self._seen = (shown, self._velocities, *seen_forces)

    def _place(self) -> float:
        return float(self._place_of_body.item(0))

    def _outcome(self, speed: float, action: np.ndarray) -> tuple[float, bool]:
        forces = self._forces
        np.minimum(
            np.maximum(self._contact_forces, self._force_min, out=forces),
            self._force_max,
            out=forces,
        )
        costs = float(self._control_weight * np.add.reduce(action * action)) + float(
            self._contact_weight * np.add.reduce(forces * forces, axis=None)
        )
        is_healthy = self._height_min <= self._positions.item(2) <= self._height_max and bool(
            np.isfinite(self._positions).all() and np.isfinite(self._velocities).all()
        )
        reward = speed * self._forward_weight + is_healthy * self._healthy_reward - costs
        return reward, not is_healthy and self._may_fall


class _Humanoid(_MujocoStep):
    """Rewarded for the speed of its center of mass, and for standing upright."""

    has_contact_forces = True

    def _prepare(self, bare: Any) -> None:
        data = bare.data
        parts = [
            (data.qpos, 2 * bare._exclude_current_positions_from_observation, True),
            (data.qvel, 0, True),
            (data.cinert, 1, bare._include_cinert_in_observation),
            (data.cvel, 1, bare._include_cvel_in_observation),
            (data.qfrc_actuator, 6, bare._include_qfrc_actuator_in_observation),
            (data.cfrc_ext, 1, bare._include_cfrc_ext_in_observation),
        ]
        self._seen = tuple(array[first:].reshape(-1) for array, first, is_seen in parts if is_seen)
        self._masses = bare.model.body_mass
        self._centres = data.xipos
        self._mass = float(self._masses.sum())
        self._forward_weight = float(bare._forward_reward_weight)
        self._healthy_reward = float(bare._healthy_reward)
        self._control_weight = bare._ctrl_cost_weight
        self._contact_weight = bare._contact_cost_weight
        self._contact_min, self._contact_max = bare._contact_cost_range
        self._may_fall = bool(bare._terminate_when_unhealthy)
        self._height_min, self._height_max = bare._healthy_z_range

    def _place(self) -> float:
        return float(np.einsum("b,bj->j", self._masses, self._centres).item(0) / self._mass)

    def _outcome(self, speed: float, action: np.ndarray) -> tuple[float, bool]:
        control = self._control
        forces = self._contact_forces
        control_cost = float(self._control_weight * np.add.reduce(control * control))
        contact_cost = float(self._contact_weight * np.add.reduce(forces * forces, axis=None))
        contact_cost = min(max(contact_cost, self._contact_min), self._contact_max)
        is_healthy = self._height_min < self._positions.item(2) < self._height_max
        reward = self._forward_weight * speed + is_healthy * self._healthy_reward
        return reward - (control_cost + contact_cost), not is_healthy and self._may_fall


_STEPS: Mapping[str, Callable[[Any, Any, MujocoState], LeanStep]] = {
    "half_cheetah_v5.HalfCheetahEnv": _Runner,
    "walker2d_v5.Walker2dEnv": _Walker2d,
    "hopper_v5.HopperEnv": _Hopper,
    "ant_v5.AntEnv": _Ant,
    "humanoid_v5.HumanoidEnv": _Humanoid,
}


def lean_step(environment: gymnasium.Env, state: object) -> LeanStep | None:
    """Returns steps for an environment made by `gymnasium.make` with any options; None for other environments.

    Args:
        state: Records the bare environment's steps, if it is known.
    """
    if not isinstance(state, MujocoState):
        return None
    bare = environment.unwrapped
    name = f"{type(bare).__module__}.{type(bare).__qualname__}".removeprefix(
        "gymnasium.envs.mujoco."
    )
    limit = environment
    is_as_made = (
        type(limit) is gymnasium.wrappers.TimeLimit
        and type(limit.env) is gymnasium.wrappers.OrderEnforcing
        and limit.env.env is bare
    )
    return _STEPS[name](limit, bare, state) if is_as_made and name in _STEPS else None
