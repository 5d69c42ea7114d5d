"""A user's own environment: keep a room at 20 °C while the weather changes."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np

STEPS = 100
WANTED_C = 20.0


class Thermostat(gymnasium.Env):
    """Observes [room − 20 °C, outside − 20 °C] in tens of degrees; the heater is off, at half, or at full power."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.room_c = self.outside_c = 0.0
        self.step_index = 0
        self.weather_c = np.zeros(STEPS)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.step_index = 0
        self.room_c, self.outside_c = (
            self.np_random.uniform(10.0, 25.0),
            self.np_random.uniform(-5.0, 10.0),
        )
        # All randomness of an episode is drawn at its start, so its state is only numbers, without a generator.
        self.weather_c = self.np_random.normal(0.0, 0.5, STEPS)
        return self._observation(), {}

    def step(self, action: int):
        self.outside_c += self.weather_c[self.step_index]
        self.room_c += 0.05 * (self.outside_c - self.room_c) + 0.9 * int(action)
        self.step_index += 1
        reward = -abs(self.room_c - WANTED_C) / 10.0
        return self._observation(), reward, False, self.step_index == STEPS, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.room_c - WANTED_C, self.outside_c - WANTED_C], np.float32) / 10.0

    # These two let an actor leave an episode open and another one continue it.

    def get_state(self) -> dict[str, object]:
        return {
            "room_c": self.room_c,
            "outside_c": self.outside_c,
            "step_index": self.step_index,
            "weather_c": self.weather_c,
        }

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.room_c, self.outside_c = float(state["room_c"]), float(state["outside_c"])
        self.step_index, self.weather_c = int(state["step_index"]), np.array(state["weather_c"])


def make() -> gymnasium.Env:
    return Thermostat()
