"""Batched environments: the interface, and the checks of what one returns.

The interface is that of rsl-rl's ``VecEnv``, which Isaac Lab and MuJoCo Playground offer for their tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from lambda_actor.errors import UnusableEnvironmentError, describe_error
from runtime.experiment.kinds import load

Tensors = Mapping[str, torch.Tensor]


class BatchedEnvironment(Protocol):
    """Several environments that take their steps together and reset themselves.

    It may also have ``state() -> dict[str, Tensor]`` and ``set_state(state)``. With both, a resumed run continues its
    episodes; otherwise it begins new ones.

    Attributes:
        num_envs: ``W``.
        num_actions: ``A``.
        max_episode_length: Longest episode in steps.
        device: Device of all its tensors.
    """

    num_envs: int
    num_actions: int
    max_episode_length: Any
    device: torch.device | str

    def get_observations(self) -> Any:
        """Returns current observations, float32 ``[W, O]``, or a mapping that has them as ``policy``."""

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, Any]:
        """Takes a step in each environment, and resets those that ended.

        Args:
            actions: As sampled, float32 ``[W, A]``.

        Returns:
            Observations after the resets; rewards ``[W]``; whether an episode ended, bool or whole numbers ``[W]``; and
            a mapping that may have ``time_outs`` ``[W]``, which episodes ended by time alone, and
            ``final_observations`` ``[W, O]`` from before the resets. Without those, an episode that ended by time
            counts as continued from the observation before its last step, as in rsl-rl.
        """


class WorldsStep(NamedTuple):
    """A step of all worlds.

    Attributes:
        observations: After the resets, ``[W, O]``.
        rewards: ``[W]``.
        terminated: Whether no reward can follow, bool ``[W]``.
        timed_out: Whether the episode ended by time alone, bool ``[W]``.
        followers: Observations from which value continues, ``[W, O]``: those before the resets.
    """

    observations: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    timed_out: torch.Tensor
    followers: torch.Tensor


class Worlds:
    """A batched environment whose results are checked for shape, type and device, which waits for no GPU.

    Attributes:
        count: ``W``.
        action_size: ``A``.
        observation_size: ``O``.
        now: The last step, overwritten by the next one; before the first, only its observations count.
        can_save: Whether it has a state.
        steps_max: Time limit of an episode; None if there is none, or if it differs between worlds.
    """

    def __init__(self, environment: Any, name: str, count: int, device: torch.device) -> None:
        """Takes an environment.

        Args:
            environment: A `BatchedEnvironment`.
            name: ``environment.id``, for messages.
            count: The number of worlds that it was asked for.
            device: The device that it was asked for.

        Raises:
            UnusableEnvironmentError: It lacks something of the interface, or its observations are unusable.
        """
        self._environment = environment
        self._name = name
        self._device = device
        lacking = [
            key
            for key in ("num_envs", "num_actions", "get_observations", "step")
            if not hasattr(environment, key)
        ]
        if lacking:
            self._refuse(f"it has no {', '.join(lacking)}, as rsl-rl's VecEnv does")
        if environment.num_envs != count:
            self._refuse(f"num_envs is {environment.num_envs}; allowed: the {count} asked for")
        self.count = count
        self.action_size = int(environment.num_actions)
        self.can_save = hasattr(environment, "state") and hasattr(environment, "set_state")
        limit = getattr(environment, "max_episode_length", None)
        self.steps_max = int(limit) if isinstance(limit, int | float) else None
        first = _of_policy(environment.get_observations())
        self.observation_size = first.shape[-1] if getattr(first, "ndim", 0) == 2 else 0
        self._check_observations("get_observations()", first)
        flags = torch.zeros((2, count), dtype=torch.bool, device=first.device)
        rewards = torch.zeros(count, device=first.device)
        # Many environments return the same tensor every time, and CUDA graphs read from where they were recorded.
        self.now = WorldsStep(first.clone(), rewards, flags[0], flags[1], torch.zeros_like(first))

    def step(self, actions: torch.Tensor) -> WorldsStep:
        """Takes a step in each world.

        Args:
            actions: float32 ``[W, A]``.

        Raises:
            UnusableEnvironmentError: It returned something unusable.
        """
        observed, rewards, dones, extras = self._environment.step(actions)
        now, observations = self.now, _of_policy(observed)
        self._check_observations("the observation of step()", observations)
        self._check("the reward of step()", rewards, (self.count,), "a float type", is_float=True)
        self._check("the third result of step()", dones, (self.count,), "bool or whole numbers")
        is_over, timed_out = dones.bool(), torch.zeros_like(dones, dtype=torch.bool)
        if "time_outs" in extras:
            what = "extras['time_outs'] of step()"
            self._check(what, extras["time_outs"], (self.count,), "bool or whole numbers")
            timed_out = extras["time_outs"].bool() & is_over
        if "final_observations" in extras:
            followers = extras["final_observations"]
            self._check_observations("extras['final_observations'] of step()", followers)
        else:
            followers = torch.where(is_over[:, None], now.observations, observations)
        step = WorldsStep(observations, rewards, is_over & ~timed_out, timed_out, followers)
        for old, new in zip(now, step, strict=True):
            old.copy_(new)
        return now

    def state(self) -> dict[str, torch.Tensor]:
        """Returns the environment's state; empty if it has none."""
        return dict(self._environment.state()) if self.can_save else {}

    def set_state(self, state: Tensors) -> None:
        """Continues from a state."""
        self._environment.set_state(dict(state))
        self.now.observations.copy_(_of_policy(self._environment.get_observations()))

    def _check_observations(self, what: str, found: Any) -> None:
        size = self.observation_size or "O"
        self._check(what, found, (self.count, size), "torch.float32", is_float=True)
        if found.dtype != torch.float32:
            self._refuse(f"{what} is {found.dtype}; allowed: torch.float32")

    def _check(
        self, what: str, found: Any, shape: tuple[Any, ...], types: str, *, is_float: bool = False
    ) -> None:
        if not isinstance(found, torch.Tensor):
            self._refuse(f"{what} is a {type(found).__name__}; allowed: a torch.Tensor")
        if tuple(found.shape) != shape:
            self._refuse(f"{what} has the shape {list(found.shape)}; allowed: {list(shape)}")
        if found.is_floating_point() != is_float:
            self._refuse(f"{what} is {found.dtype}; allowed: {types}")
        if found.device.type != self._device.type:
            self._refuse(f"{what} is on {found.device}; allowed: {self._device}, learner.device")

    def _refuse(self, problem: str) -> None:
        raise UnusableEnvironmentError(f"environment.id = {self._name!r}: {problem}")


def make_worlds(
    made: Mapping[str, Any], count: int, device: torch.device | str, seed: int
) -> Worlds:
    """Makes worlds.

    Args:
        made: ``backend``, ``id``, ``kwargs``, ``max_episode_steps`` and ``rescale_actions`` of ``environment``.
        count: Number of worlds.
        device: Their device.
        seed: Seeds their chance.

    Raises:
        UnusableEnvironmentError: They cannot be made, or are unusable.
    """
    name, device = made["id"], torch.device(device)
    if made["backend"] == "warp":
        from runtime.gmi.worlds.warp import make_warp

        return Worlds(make_warp(made, count, device, seed), name, count, device)
    try:
        environment = load(name)(num_envs=count, device=str(device), seed=seed, **made["kwargs"])
    except (Exception, SystemExit) as error:
        raise UnusableEnvironmentError(
            f"environment.id = {name!r} cannot be made as NAME(num_envs=, device=, seed=, **environment.kwargs): "
            f"{describe_error(error)}"
        ) from error
    return Worlds(environment, name, count, device)


def _of_policy(observed: Any) -> Any:
    """Returns the policy's observations, of several groups of them."""
    return observed if isinstance(observed, torch.Tensor) else observed["policy"]
