"""Gymnasium's MuJoCo tasks as batches: observations, rewards and ends of episodes, of any physics with MuJoCo's arrays.

Gymnasium's environment provides the model, the constants, and the states in which episodes begin.

Departure: Numbers are float32. An episode begins in one of 1,024 states that Gymnasium's reset made at the start of the
run, so that no reset leaves the device. A world whose numbers are no longer finite ends its episode, with reward 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from lambda_actor.environments import ActorEnvironment
from runtime.learner.graphs import graphed

START_STATES = 1024
WRITTEN = ("qpos", "qvel", "qacc_warmstart")
"""Arrays from which a simulation continues."""
_PLACES = ("qpos", "xpos", "subtree_com")
"""Arrays that have positions along x."""
_START_STREAM = 0x57A7
_ANY = (-math.inf, math.inf)

StepOutcome = tuple[torch.Tensor, torch.Tensor | bool]
"""Rewards ``[W]``, and whether the episode is over, bool ``[W]``; False in tasks that only end by time."""


class Physics(Protocol):
    """A simulation of one model in all worlds.

    Attributes:
        arrays: Has MuJoCo's arrays as tensors ``[W, …]``, which `step` reads (``ctrl`` and the state) and writes.
    """

    arrays: Any

    def step(self) -> None:
        """Simulates a step of the environment, with the forces that contacts exert."""


@dataclass(frozen=True)
class BatchedTask:
    """A task, as functions of a physics' arrays and of Gymnasium's environment, which has the constants.

    Attributes:
        observe: Returns the parts of observations.
        outcome: Returns the outcome of a step, given the distance moved along x, ``[W]``.
        place: Returns the position along x.
    """

    observe: Callable[[Any, Any], Sequence[torch.Tensor]]
    outcome: Callable[[Any, Any, torch.Tensor], StepOutcome]
    place: Callable[[Any, Any], torch.Tensor] = lambda d, _: d.qpos[:, 0]


class MujocoWorlds:
    """A batched environment for one of `TASKS`; see `runtime.gmi.worlds.batched.BatchedEnvironment`."""

    def __init__(
        self,
        environment: ActorEnvironment,
        physics: Physics,
        *,
        count: int,
        device: torch.device,
        seed: int,
    ) -> None:
        """Begins an episode in each world.

        Args:
            environment: Gymnasium's environment, one of `TASKS`.
            physics: Simulates its model.
            count: Number of worlds.
            device: Device of the physics' arrays.
            seed: Seeds the choice of start states.
        """
        self._task = TASKS[environment.environment_id]
        bare: Any = environment.gymnasium_environment.unwrapped
        self._bare = bare
        self.num_envs = count
        self.device = device
        self.num_actions = environment.spaces.action_size
        self.max_episode_length = environment.episode_steps_max or 2**31 - 1
        self.episode_length_buf = torch.zeros(count, dtype=torch.int64, device=device)
        self._physics = physics
        self._arrays = physics.arrays
        self._low, self._high = (
            torch.from_numpy(bound).to(device)
            for bound in (bare.action_space.low, bare.action_space.high)
        )
        middle, half = environment.action_scale or (np.float32(0), np.float32(1))
        self._middle, self._half = (
            torch.as_tensor(middle, device=device),
            torch.as_tensor(half, device=device),
        )
        rows = np.stack([self._start(environment, seed) for seed in range(START_STATES)])
        self._starts = torch.from_numpy(rows).to(device)
        self._observations = torch.zeros(
            (count, environment.spaces.observation_size), device=device
        )
        self._places = torch.zeros((count, 1), device=device)
        self._state = (
            self._observations,
            self._places,
            *(getattr(physics.arrays, name) for name in WRITTEN),
        )
        self._sizes = [part.shape[1] for part in self._state]
        self._followers = torch.zeros_like(self._observations)
        self._rewards = torch.zeros(count, device=device)
        self._is_over, self._timed_out = torch.zeros((2, count), dtype=torch.bool, device=device)
        # A graph can only draw from the device's own stream of chance.
        self._chance = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.Generator()
        )
        physics.step()
        self._after = graphed(self._conclude, device)
        self._chance.manual_seed(
            int(np.random.SeedSequence((_START_STREAM, seed)).generate_state(1)[0])
        )
        self._reset(torch.ones_like(self._is_over))

    def get_observations(self) -> torch.Tensor:
        """Returns the current observations."""
        return self._observations

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Takes a step in each world, with actions rescaled and clipped to their bounds."""
        rescaled = self._middle + self._half * actions
        self._arrays.ctrl.copy_(rescaled.clamp(self._low, self._high))
        self._physics.step()
        self._after()
        extras = {"time_outs": self._timed_out, "final_observations": self._followers}
        return self._observations, self._rewards, self._is_over, extras

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the state of all worlds, and of their chance."""
        return {
            "worlds": torch.cat(self._state, 1),
            "lengths": self.episode_length_buf.clone(),
            "chance": self._chance.get_state(),
        }

    def set_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues from a state."""
        for part, new in zip(
            self._state, torch.split(state["worlds"], self._sizes, 1), strict=True
        ):
            part.copy_(new)
        self.episode_length_buf.copy_(state["lengths"])
        self._chance.set_state(state["chance"].cpu())

    def _start(self, environment: ActorEnvironment, seed: int) -> np.ndarray:
        """Returns a state in which Gymnasium begins an episode, float32 ``[S]``, in the order of `_state`."""
        frame, data = environment.reset(seed), self._bare.data
        arrays = {name: torch.from_numpy(getattr(data, name))[None] for name in _PLACES}
        place = self._task.place(SimpleNamespace(**arrays), self._bare)
        parts = [frame, place, data.qpos, data.qvel, 0.0 * data.qvel]
        return np.concatenate(parts, dtype=np.float32)

    def _conclude(self) -> None:
        """Computes the outcome of a step, and begins new episodes where one ended."""
        task, arrays, bare = self._task, self._arrays, self._bare
        places = task.place(arrays, bare)
        observed = torch.cat([part.flatten(1) for part in task.observe(arrays, bare)], 1)
        rewards, is_over = task.outcome(arrays, bare, places - self._places[:, 0])
        is_sound = observed.isfinite().all(1) & rewards.isfinite()
        terminated = is_over | ~is_sound
        self.episode_length_buf.add_(1)
        self._timed_out.copy_((self.episode_length_buf >= self.max_episode_length) & ~terminated)
        self._is_over.copy_(terminated | self._timed_out)
        self._rewards.copy_(torch.where(is_sound, rewards, 0.0))
        self._followers.copy_(torch.where(is_sound[:, None], observed, 0.0))
        self._observations.copy_(self._followers)
        self._places.copy_(places[:, None])
        self._reset(self._is_over)

    def _reset(self, which: torch.Tensor) -> None:
        """Begins new episodes in some worlds, bool ``[W]``."""
        chosen = torch.randint(
            len(self._starts), (self.num_envs,), generator=self._chance, device=self.device
        )
        rows = torch.split(self._starts[chosen], self._sizes, 1)
        for part, new in zip(self._state, rows, strict=True):
            part.copy_(torch.where(which[:, None], new, part))
        self.episode_length_buf.masked_fill_(which, 0)


# Parts of the tasks


def _moving(*bounds: tuple[str, slice]) -> Callable[[Any, Any, torch.Tensor], StepOutcome]:
    """Returns the outcome of tasks that reward speed.

    Args:
        bounds: Ranges, as Gymnasium's environment names them, in which these parts of positions and velocities must
            stay. Without any, nothing ends an episode.
    """

    def outcome(d: Any, bare: Any, moved: torch.Tensor) -> StepOutcome:
        rewards = bare._forward_reward_weight * (moved / bare.dt) - _control(d, bare)
        if hasattr(bare, "_contact_cost_weight"):
            costs = bare._contact_cost_weight * _forces(d, bare).square().sum((1, 2))
            rewards = rewards - costs.clamp(*getattr(bare, "_contact_cost_range", _ANY))
        numbers = torch.cat([d.qpos, d.qvel], 1)
        is_healthy = torch.ones_like(rewards, dtype=torch.bool)
        for name, part in bounds:
            low, high = getattr(bare, name)
            is_healthy &= ((low < numbers[:, part]) & (numbers[:, part] < high)).all(1)
        if bounds:
            rewards = rewards + bare._healthy_reward * is_healthy
        return rewards, ~is_healthy

    return outcome


def _control(d: Any, bare: Any) -> torch.Tensor:
    return bare._ctrl_cost_weight * d.ctrl.square().sum(1)  # type: ignore[no-any-return]


def _forces(d: Any, bare: Any) -> torch.Tensor:
    """Returns the forces of contacts as the task counts them."""
    return d.cfrc_ext.clamp(*getattr(bare, "_contact_force_range", _ANY))  # type: ignore[no-any-return]


def _state(
    hidden: int, velocity_max: float = math.inf
) -> Callable[[Any, Any], Sequence[torch.Tensor]]:
    """Returns the observation of positions without the first ones, and of clipped velocities."""
    return lambda d, _: (d.qpos[:, hidden:], d.qvel.clamp(-velocity_max, velocity_max))


def _distance(d: Any, bare: Any, *names: str) -> torch.Tensor:
    """Returns the vector from the second to the first of two bodies, ``[W, 3]``."""
    first, second = (d.xpos[:, bare.model.body(name).id] for name in names)
    return first - second  # type: ignore[no-any-return]


def _ant(d: Any, bare: Any) -> Sequence[torch.Tensor]:
    return d.qpos[:, 2:], d.qvel, _forces(d, bare)[:, 1:]


def _humanoid(d: Any, bare: Any) -> Sequence[torch.Tensor]:
    of_bodies = (d.cinert[:, 1:], d.cvel[:, 1:], d.qfrc_actuator[:, 6:], d.cfrc_ext[:, 1:])
    return d.qpos[:, 2:], d.qvel, *of_bodies


def _standing_up(d: Any, bare: Any, _: torch.Tensor) -> StepOutcome:
    impact = bare._impact_cost_weight * d.cfrc_ext.square().sum((1, 2))
    costs = impact.clamp(*bare._impact_cost_range)
    return d.qpos[:, 2] / bare.model.opt.timestep - _control(d, bare) - costs + 1.0, False


def _balancing(d: Any, bare: Any, _: torch.Tensor) -> StepOutcome:
    is_over = d.qpos[:, 1].abs() > 0.2
    return 1.0 - is_over.float(), is_over


def _two_poles(d: Any, bare: Any) -> Sequence[torch.Tensor]:
    angles = d.qpos[:, 1:]
    velocities = d.qvel.clamp(-10.0, 10.0)
    force = d.qfrc_constraint[:, :1].clamp(-10.0, 10.0)
    return d.qpos[:, :1], angles.sin(), angles.cos(), velocities, force


def _balancing_two(d: Any, bare: Any, _: torch.Tensor) -> StepOutcome:
    x, height = d.site_xpos[:, 0, 0], d.site_xpos[:, 0, 2]
    is_over = height <= 1.0
    distance = 0.01 * x.square() + (height - 2.0).square()
    velocity = 1e-3 * d.qvel[:, 1].square() + 5e-3 * d.qvel[:, 2].square()
    return bare._healthy_reward * (~is_over) - distance - velocity, is_over


def _reaching(d: Any, bare: Any) -> Sequence[torch.Tensor]:
    angles, distance = d.qpos[:, :2], _distance(d, bare, "fingertip", "target")
    return angles.cos(), angles.sin(), d.qpos[:, 2:], d.qvel[:, :2], distance[:, :2]


def _reached(d: Any, bare: Any, _: torch.Tensor) -> StepOutcome:
    distance = _distance(d, bare, "fingertip", "target").norm(dim=1)
    control = bare._reward_control_weight * d.ctrl.square().sum(1)
    return -bare._reward_dist_weight * distance - control, False


def _pushing(d: Any, bare: Any) -> Sequence[torch.Tensor]:
    bodies = [d.xpos[:, bare.model.body(name).id] for name in ("tips_arm", "object", "goal")]
    return d.qpos[:, :7], d.qvel[:, :7], *bodies


def _pushed(d: Any, bare: Any, _: torch.Tensor) -> StepOutcome:
    near = bare._reward_near_weight * _distance(d, bare, "object", "tips_arm").norm(dim=1)
    distance = bare._reward_dist_weight * _distance(d, bare, "object", "goal").norm(dim=1)
    return -distance - near - bare._reward_control_weight * d.ctrl.square().sum(1), False


_Z, _ANGLE = "_healthy_z_range", "_healthy_angle_range"
TASKS: Mapping[str, BatchedTask] = {
    "Ant-v5": BatchedTask(
        _ant, _moving((_Z, slice(2, 3))), lambda d, bare: d.xpos[:, bare._main_body, 0]
    ),
    "HalfCheetah-v5": BatchedTask(_state(1), _moving()),
    "Hopper-v5": BatchedTask(
        _state(1, 10.0),
        _moving((_Z, slice(1, 2)), (_ANGLE, slice(2, 3)), ("_healthy_state_range", slice(2, None))),
    ),
    "Walker2d-v5": BatchedTask(_state(1, 10.0), _moving((_Z, slice(1, 2)), (_ANGLE, slice(2, 3)))),
    "Swimmer-v5": BatchedTask(_state(2), _moving()),
    "Humanoid-v5": BatchedTask(
        _humanoid, _moving((_Z, slice(2, 3))), lambda d, _: d.subtree_com[:, 0, 0]
    ),
    "HumanoidStandup-v5": BatchedTask(_humanoid, _standing_up),
    "InvertedPendulum-v5": BatchedTask(_state(0), _balancing),
    "InvertedDoublePendulum-v5": BatchedTask(_two_poles, _balancing_two),
    "Reacher-v5": BatchedTask(_reaching, _reached),
    "Pusher-v5": BatchedTask(_pushing, _pushed),
}
