"""MuJoCo Warp: simulates one of Gymnasium's models in all worlds at once, on a GPU or slowly on a CPU.

Paper: GMI-DRL §6.1; its simulator is Isaac Gym.
Departure: Contacts are solved by Newton's method, as PGS, which Humanoid-v5 asks for, is missing. The friction of a
nearly upright capsule on the floor has another pair of axes than in MuJoCo. On a GPU, no two simulations are equal to
the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import mujoco_warp as mjw
import torch
import warp as wp

from lambda_actor.environments import ActorEnvironment, make_environment
from runtime.gmi.worlds.mujoco import MujocoWorlds

wp.config.log_level = wp.LOG_WARNING


def make_warp(made: Mapping[str, Any], count: int, device: torch.device, seed: int) -> MujocoWorlds:
    """Makes worlds of one of Gymnasium's tasks. Compiling takes a minute the first time on a machine.

    Args:
        made: ``id`` of ``environment``, one of `TASKS`, and its ``max_episode_steps`` and ``rescale_actions``.
    """
    options = {name: made[name] for name in ("max_episode_steps", "rescale_actions") if made[name]}
    environment = make_environment(made["id"], "none", options)
    physics = WarpPhysics(environment, count, device)
    return MujocoWorlds(environment, physics, count=count, device=device, seed=seed)


class WarpPhysics:
    """A `runtime.gmi.worlds.mujoco.Physics`."""

    def __init__(self, environment: ActorEnvironment, count: int, device: torch.device) -> None:
        """Compiles the simulation.

        Args:
            environment: Gymnasium's environment.
            count: Number of worlds.
            device: Where they are.
        """
        bare: Any = environment.gymnasium_environment.unwrapped
        model = copy.copy(bare.model)
        model.opt.solver = mjw.SolverType.NEWTON
        self._frame_skip = bare.frame_skip
        self._graph: Any = None
        with wp.ScopedDevice(str(device)):
            self._model, self._data = mjw.put_model(model), mjw.make_data(model, nworld=count)
            if device.type == "cuda":
                # Compile first, because nothing can be compiled while recording.
                self._launch()
                wp.synchronize()
                with wp.ScopedCapture() as capture:
                    self._launch()
                self._graph = capture.graph
        self.arrays = _Tensors(self._data)

    def step(self) -> None:
        """Simulates a step of the environment."""
        if self._graph is None:
            self._launch()
        else:
            wp.capture_launch(self._graph, stream=wp.stream_from_torch(torch.cuda.current_stream()))

    def _launch(self) -> None:
        for _ in range(self._frame_skip):
            mjw.step(self._model, self._data)
        mjw.rne_postconstraint(self._model, self._data)


class _Tensors:
    """Warp's arrays of all worlds as tensors that share their memory."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getattr__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = wp.to_torch(getattr(self._data, name))
        setattr(self, name, tensor)
        return tensor
