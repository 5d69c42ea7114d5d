"""MuJoCo itself as the physics of batched worlds: one world after the other, on the host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch

_STATE = ("qpos", "qvel", "qacc_warmstart", "ctrl")
_SEEN = (
    *("xpos", "site_xpos", "subtree_com", "cinert", "cvel"),
    *("qfrc_actuator", "qfrc_constraint", "cfrc_ext"),
)


class HostPhysics:
    """A `runtime.gmi.worlds.mujoco.Physics` in double precision, with arrays in float32.

    Attributes:
        broken: Worlds whose velocities become NaN in each step.
    """

    broken: tuple[int, ...] = ()

    def __init__(self, bare: Any, count: int) -> None:
        self._model, self._frame_skip = bare.model, bare.frame_skip
        self._worlds = [mujoco.MjData(bare.model) for _ in range(count)]
        self._tensors = {
            name: torch.from_numpy(
                np.stack([getattr(one, name) for one in self._worlds]).astype(np.float32)
            )
            for name in (*_STATE, *_SEEN)
        }
        self.arrays = SimpleNamespace(**self._tensors)

    def step(self) -> None:
        for index, world in enumerate(self._worlds):
            for name in _STATE:
                getattr(world, name)[:] = self._tensors[name][index].numpy()
            # A step observes positions of before its last integration, as Gymnasium's does.
            mujoco.mj_step(self._model, world, nstep=self._frame_skip)
            mujoco.mj_rnePostConstraint(self._model, world)
            for name, array in self._tensors.items():
                if name != "ctrl":
                    array[index] = torch.from_numpy(np.array(getattr(world, name)))
        for index in self.broken:
            self.arrays.qvel[index] = torch.nan
