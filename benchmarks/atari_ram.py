"""Q*bert as a vector, the console's 128 bytes of RAM, for rllib_figure12.py.

Importing this module registers its id, in RLlib's interpreter and in the pool's.
"""

from __future__ import annotations

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import ClipReward, DtypeObservation, RescaleObservation


def make(*, is_clipped: bool = True) -> gymnasium.Env:
    """Returns Q*bert with four frames per step and observations from 0 to 1, float32 ``[128]``.

    Args:
        is_clipped: Whether rewards are clipped to −1 … 1.
    """
    environment = gymnasium.make(
        "ALE/Qbert-v5", obs_type="ram", frameskip=4, disable_env_checker=True
    )
    environment = RescaleObservation(
        DtypeObservation(environment, np.float32), np.float32(0), np.float32(1)
    )
    return ClipReward(environment, -1.0, 1.0) if is_clipped else environment


ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
gymnasium.register_envs(ale_py)
gymnasium.register("QbertRam-v0", make, disable_env_checker=True)
