"""A Humanoid-v5 that simulates more frames per step, as a user's own environment, for where_serverless_pays.py.

It makes an environment with steps of any cost: 5 frames are Gymnasium's default, and 320 take sixty times as long.
"""

from __future__ import annotations

from functools import partial

import gymnasium

EPISODE_FRAMES = 5000


def make(frames: int) -> gymnasium.Env:
    """Returns the environment with ``frames`` simulated frames per step. It continues after a fall."""
    return gymnasium.make(
        "Humanoid-v5",
        disable_env_checker=True,
        frame_skip=frames,
        terminate_when_unhealthy=False,
        max_episode_steps=EPISODE_FRAMES // frames,
    )


frames_5, frames_20, frames_80, frames_320 = (partial(make, frames) for frames in (5, 20, 80, 320))
