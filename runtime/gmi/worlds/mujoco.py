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
_START_STREAM = 0x57A7
_VELOCITY_MAX = 10.0

Arrays = Any
"""MuJoCo's arrays of all worlds by name, float32 ``[W, …]``."""
Outcome = tuple[torch.Tensor, torch.Tensor | None]
"""Rewards ``[W]``, and whether the episode is over, bool ``[W]``; None in tasks that only end by time."""


class Physics(Protocol):
    """A simulation of one model in all worlds.

    Attributes:
        arrays: Tensors by MuJoCo's names, which `step` reads (``ctrl`` and the state) and writes.
    """

    arrays: Mapping[str, torch.Tensor]

    def step(self) -> None:
        """Simulates a step of the environment, with the forces that contacts exert."""


@dataclass(frozen=True)
class BatchedTask:
    """A task, as functions of the arrays and of Gymnasium's environment, which has the constants.

    Attributes:
        reads: Arrays that it needs besides qpos, qvel and ctrl.
        observe: Returns the parts of observations.
        outcome: Returns the outcome of a step, given the distance moved along x, ``[W]``.
        place: Returns the position along x.
    """

    reads: tuple[str, ...]
    observe: Callable[[Arrays, Any], Sequence[torch.Tensor]]
    outcome: Callable[[Arrays, Any, torch.Tensor], Outcome]
    place: Callable[[Arrays, Any], torch.Tensor] = lambda d, _: d.qpos[:, 0]


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
        self.num_envs, self.device = count, device
        self.num_actions = environment.spaces.action_size
        self.max_episode_length = environment.episode_steps_max or 2**31 - 1
        self.episode_length_buf = torch.zeros(count, dtype=torch.int64, device=device)
        self._physics = physics
        masses = torch.from_numpy(bare.model.body_mass).float()
        self._arrays = SimpleNamespace(**physics.arrays, body_mass=masses.to(device))
        self._low, self._high = (
            torch.from_numpy(bound).to(device)
            for bound in (bare.action_space.low, bare.action_space.high)
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
            *(physics.arrays[name] for name in WRITTEN),
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
        """Takes a step in each world, with actions clipped to their bounds."""
        self._arrays.ctrl.copy_(actions.clamp(self._low, self._high))
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
        arrays = {name: torch.from_numpy(getattr(data, name))[None] for name in self._task.reads}
        masses = torch.from_numpy(self._bare.model.body_mass)
        one = SimpleNamespace(**arrays, qpos=torch.from_numpy(data.qpos)[None], body_mass=masses)
        parts = [frame, self._task.place(one, self._bare), data.qpos, data.qvel, 0.0 * data.qvel]
        return np.concatenate(parts, dtype=np.float32)

    def _conclude(self) -> None:
        """Computes the outcome of a step, and begins new episodes where one ended."""
        task, arrays, bare = self._task, self._arrays, self._bare
        places = task.place(arrays, bare)
        observed = torch.cat([part.flatten(1) for part in task.observe(arrays, bare)], 1)
        rewards, is_over = task.outcome(arrays, bare, places - self._places[:, 0])
        is_sound = observed.isfinite().all(1) & rewards.isfinite()
        terminated = ~is_sound if is_over is None else is_over | ~is_sound
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


def _moving(
    bounds: Callable[[Arrays, Any], Sequence[tuple[torch.Tensor, tuple[float, float]]]],
) -> Any:
    """Returns the outcome of tasks that reward speed.

    Args:
        bounds: Returns numbers ``[W, …]`` that must stay in a range, each with its range. Without any, nothing ends an
            episode.
    """

    def outcome(d: Arrays, bare: Any, moved: torch.Tensor) -> Outcome:
        speed = moved / bare.dt
        rewards = (
            bare._forward_reward_weight * speed - bare._ctrl_cost_weight * d.ctrl.square().sum(1)
        )
        if hasattr(bare, "_contact_cost_weight"):
            costs = bare._contact_cost_weight * _forces(d, bare).square().sum((1, 2))
            low, high = getattr(bare, "_contact_cost_range", (-math.inf, math.inf))
            rewards = rewards - costs.clamp(low, high)
        within = [
            ((low < numbers) & (numbers < high)).all(1) for numbers, (low, high) in bounds(d, bare)
        ]
        if not within:
            return rewards, None
        is_healthy = torch.stack(within).all(0)
        return rewards + bare._healthy_reward * is_healthy, ~is_healthy

    return outcome


def _forces(d: Arrays, bare: Any) -> torch.Tensor:
    """Returns the forces of contacts as the task counts them."""
    return d.cfrc_ext.clamp(*getattr(bare, "_contact_force_range", (-math.inf, math.inf)))  # type: ignore[no-any-return]


def _position_and_velocity(hidden: int, velocity_max: float = math.inf) -> Any:
    """Returns the observation of positions without the first ones, and of clipped velocities."""
    return lambda d, _: (d.qpos[:, hidden:], d.qvel.clamp(-velocity_max, velocity_max))


def _body(d: Arrays, bare: Any, name: str) -> torch.Tensor:
    return d.xpos[:, bare.model.body(name).id]  # type: ignore[no-any-return]


def _center_of_mass(d: Arrays, bare: Any) -> torch.Tensor:
    return (d.xipos[:, :, 0] * d.body_mass).sum(1) / d.body_mass.sum()  # type: ignore[no-any-return]


def _humanoid(d: Arrays, bare: Any) -> Sequence[torch.Tensor]:
    return (
        d.qpos[:, 2:],
        d.qvel,
        d.cinert[:, 1:],
        d.cvel[:, 1:],
        d.qfrc_actuator[:, 6:],
        d.cfrc_ext[:, 1:],
    )


_HUMANOID_READS = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")


def _standing_up(d: Arrays, bare: Any, _: torch.Tensor) -> Outcome:
    impact = (bare._impact_cost_weight * d.cfrc_ext.square().sum((1, 2))).clamp(
        *bare._impact_cost_range
    )
    control = bare._ctrl_cost_weight * d.ctrl.square().sum(1)
    return d.qpos[:, 2] / bare.model.opt.timestep - control - impact + 1.0, None


def _balancing(d: Arrays, bare: Any, _: torch.Tensor) -> Outcome:
    is_over = d.qpos[:, 1].abs() > 0.2
    return 1.0 - is_over.float(), is_over


def _two_poles(d: Arrays, bare: Any) -> Sequence[torch.Tensor]:
    angles = d.qpos[:, 1:]
    clipped = (d.qvel, d.qfrc_constraint[:, :1])
    return (
        d.qpos[:, :1],
        angles.sin(),
        angles.cos(),
        *(part.clamp(-_VELOCITY_MAX, _VELOCITY_MAX) for part in clipped),
    )


def _balancing_two(d: Arrays, bare: Any, _: torch.Tensor) -> Outcome:
    x, height = d.site_xpos[:, 0, 0], d.site_xpos[:, 0, 2]
    is_over = height <= 1.0
    distance = 0.01 * x.square() + (height - 2.0).square()
    velocity = 1e-3 * d.qvel[:, 1].square() + 5e-3 * d.qvel[:, 2].square()
    return bare._healthy_reward * (~is_over) - distance - velocity, is_over


def _reaching(d: Arrays, bare: Any) -> Sequence[torch.Tensor]:
    angles = d.qpos[:, :2]
    distance = _body(d, bare, "fingertip") - _body(d, bare, "target")
    return angles.cos(), angles.sin(), d.qpos[:, 2:], d.qvel[:, :2], distance[:, :2]


def _reached(d: Arrays, bare: Any, _: torch.Tensor) -> Outcome:
    distance = (_body(d, bare, "fingertip") - _body(d, bare, "target")).norm(dim=1)
    control = d.ctrl.square().sum(1)
    return -bare._reward_dist_weight * distance - bare._reward_control_weight * control, None


def _pushing(d: Arrays, bare: Any) -> Sequence[torch.Tensor]:
    bodies = [_body(d, bare, name) for name in ("tips_arm", "object", "goal")]
    return d.qpos[:, :7], d.qvel[:, :7], *bodies


def _pushed(d: Arrays, bare: Any, _: torch.Tensor) -> Outcome:
    tip, target, goal = (_body(d, bare, name) for name in ("tips_arm", "object", "goal"))
    near, distance = (target - tip).norm(dim=1), (target - goal).norm(dim=1)
    control = d.ctrl.square().sum(1)
    costs = bare._reward_dist_weight * distance + bare._reward_near_weight * near
    return -costs - bare._reward_control_weight * control, None


TASKS: Mapping[str, BatchedTask] = {
    "Ant-v5": BatchedTask(
        ("xpos", "cfrc_ext"),
        lambda d, bare: (d.qpos[:, 2:], d.qvel, _forces(d, bare)[:, 1:]),
        _moving(lambda d, bare: [(d.qpos[:, 2:3], bare._healthy_z_range)]),
        lambda d, bare: d.xpos[:, bare._main_body, 0],
    ),
    "HalfCheetah-v5": BatchedTask((), _position_and_velocity(1), _moving(lambda d, bare: [])),
    "Hopper-v5": BatchedTask(
        (),
        _position_and_velocity(1, _VELOCITY_MAX),
        _moving(
            lambda d, bare: [
                (d.qpos[:, 1:2], bare._healthy_z_range),
                (d.qpos[:, 2:3], bare._healthy_angle_range),
                (torch.cat([d.qpos[:, 2:], d.qvel], 1), bare._healthy_state_range),
            ]
        ),
    ),
    "Walker2d-v5": BatchedTask(
        (),
        _position_and_velocity(1, _VELOCITY_MAX),
        _moving(
            lambda d, bare: [
                (d.qpos[:, 1:2], bare._healthy_z_range),
                (d.qpos[:, 2:3], bare._healthy_angle_range),
            ]
        ),
    ),
    "Swimmer-v5": BatchedTask((), _position_and_velocity(2), _moving(lambda d, bare: [])),
    "Humanoid-v5": BatchedTask(
        ("xipos", *_HUMANOID_READS),
        _humanoid,
        _moving(lambda d, bare: [(d.qpos[:, 2:3], bare._healthy_z_range)]),
        _center_of_mass,
    ),
    "HumanoidStandup-v5": BatchedTask(_HUMANOID_READS, _humanoid, _standing_up),
    "InvertedPendulum-v5": BatchedTask((), _position_and_velocity(0), _balancing),
    "InvertedDoublePendulum-v5": BatchedTask(
        ("site_xpos", "qfrc_constraint"), _two_poles, _balancing_two
    ),
    "Reacher-v5": BatchedTask(("xpos",), _reaching, _reached),
    "Pusher-v5": BatchedTask(("xpos",), _pushing, _pushed),
}
