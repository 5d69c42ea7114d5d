"""A custom environment that passes its trial and fails elsewhere."""

import os
import sys
import time
from pathlib import Path

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


class HangingOnce(FailingEnvironment):
    """Its episodes have sixteen steps. In actors, the sixth reset hangs, with two environments played in lockstep.

    The other resets come from three fragments and from creating two environments, since stateful ones reset at once.
    """

    def __init__(self, place):
        self.place, self.count, self.start = Path(place), 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.start = 0, self.np_random.random()
        if self.place.is_dir() and sys.argv[0].endswith("actor_process.py"):
            begun = len(list(self.place.iterdir()))
            (self.place / f"{begun} {os.getpid()}").touch()
            if begun == 5:
                time.sleep(1000)
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        observation = self._observation()
        return observation, float(observation[1] + action[0]), self.count % 16 == 0, False, {}

    def _observation(self):
        return np.array([self.count / 16, self.start], np.float32)

    def get_state(self):
        return {"count": self.count, "start": self.start}

    def set_state(self, state):
        self.count, self.start = int(state["count"]), float(state["start"])


def make_hanging_once(place):
    return HangingOnce(place)
