"""Steps of batched worlds beside those of Gymnasium's environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from runtime.gmi.worlds.mujoco import WRITTEN, MujocoWorlds


def steps_of_both(
    worlds: MujocoWorlds, arrays: Any, environment: Any, steps: int
) -> Iterator[tuple[Any, Any]]:
    """Takes random steps, some out of bounds, before each of which both have the first world's state, in float32.

    Only what is written is set. A step begins where the last one left what was derived, as in Gymnasium.

    Yields:
        Observation, reward, whether it terminated and was truncated, of Gymnasium; the same of the first world.
    """
    bare: Any = environment.gymnasium_environment.unwrapped
    bound, random = bare.action_space.high, np.random.default_rng(1)
    environment.reset(3)
    for _ in range(steps):
        state = {name: getattr(arrays, name)[0].cpu().numpy() for name in WRITTEN}
        if worlds.episode_length_buf[0] == 0:
            environment.reset(3)
            bare.set_state(state["qpos"], state["qvel"])
        for name, array in state.items():
            getattr(bare.data, name)[:] = array
        action = random.uniform(-1.5 * bound, 1.5 * bound).astype(np.float32)
        expected = environment.step(action)
        actions = torch.from_numpy(np.stack([action, 0.0 * action])).to(worlds.device)
        _, rewards, dones, extras = worlds.step(actions)
        is_late, is_over = (bool(flags[0]) for flags in (extras["time_outs"], dones))
        frame = extras["final_observations"][0].cpu().numpy()
        yield expected, (frame, rewards[0].item(), is_over and not is_late, is_late)
