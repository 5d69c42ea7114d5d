"""A custom environment that passes its trial and fails elsewhere."""

import sys

import gymnasium
import numpy as np


class FailingEnvironment(gymnasium.Env):
    """Raises in actors."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if sys.argv[0].endswith("actor_process.py"):
            raise RuntimeError("the motor is on fire")
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def make():
    return FailingEnvironment()
