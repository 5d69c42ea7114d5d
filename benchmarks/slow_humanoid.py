"""Humanoid-v5 whose step simulates more frames, as an environment of one's own: for where_serverless_pays.py.

The same machine's environment of any price: 5 frames are Gymnasium's own, 320 take sixty times as long.
"""

from __future__ import annotations

from functools import partial

import gymnasium

EPISODE_FRAMES = 5000


def make(frames: int) -> gymnasium.Env:
    """Makes it, with ``frames`` of the simulation in each step; one that has fallen goes on."""
    return gymnasium.make("Humanoid-v5", disable_env_checker=True, frame_skip=frames, terminate_when_unhealthy=False,
                          max_episode_steps=EPISODE_FRAMES // frames)


frames_5, frames_20, frames_80, frames_320 = (partial(make, frames) for frames in (5, 20, 80, 320))
