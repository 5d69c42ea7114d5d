"""A Humanoid-v5 with slow steps of about 5 ms, as a user's own environment."""

from __future__ import annotations

import gymnasium


def frames_80() -> gymnasium.Env:
    """Returns the environment with 80 simulated frames per step. It continues after a fall."""
    return gymnasium.make(
        "Humanoid-v5",
        disable_env_checker=True,
        frame_skip=80,
        terminate_when_unhealthy=False,
        max_episode_steps=62,
    )
