"""Many rooms at once as tensors: a user's own batched environment, with the interface of rsl-rl's VecEnv."""

from __future__ import annotations

import torch

STEPS = 100
WANTED_C = 20.0


class Thermostats:
    """Observes [room − 20 °C, outside − 20 °C] in tens of degrees; the action is the heater's power, from −1 to 1.

    An episode ends after 100 steps, or when the pipes freeze.
    """

    num_actions = 1
    max_episode_length = STEPS

    def __init__(self, num_envs: int, device: str, seed: int, freezes_c: float = 5.0) -> None:
        self.num_envs, self.device, self.freezes_c = num_envs, device, freezes_c
        self.chance = torch.Generator(device).manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.celsius = self.new_celsius()

    def new_celsius(self) -> torch.Tensor:
        """Returns temperatures at the start of an episode, inside and outside, ``[W, 2]``."""
        drawn = torch.rand((self.num_envs, 2), generator=self.chance, device=self.device)
        return drawn * 15.0 + torch.tensor([10.0, -5.0], device=self.device)

    def get_observations(self) -> torch.Tensor:
        return (self.celsius - WANTED_C) / 10.0

    def step(self, actions: torch.Tensor):
        power = (actions[:, 0].clamp(-1.0, 1.0) + 1.0) / 2.0
        room, outside = self.celsius.unbind(1)
        room = room + 0.05 * (outside - room) + 1.8 * power
        weather = torch.randn(self.num_envs, generator=self.chance, device=self.device)
        self.celsius = torch.stack([room, outside + 0.5 * weather], 1)
        self.episode_length_buf += 1
        frozen = room < self.freezes_c
        late = (self.episode_length_buf >= STEPS) & ~frozen
        dones = frozen | late
        rewards = 1.0 - (room - WANTED_C).abs() / 10.0
        final_observations = self.get_observations()
        self.celsius = torch.where(dones[:, None], self.new_celsius(), self.celsius)
        self.episode_length_buf[dones] = 0
        extras = {"time_outs": late, "final_observations": final_observations}
        return self.get_observations(), rewards, dones, extras

    # With these two, a resumed run continues its episodes.

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "celsius": self.celsius.clone(),
            "lengths": self.episode_length_buf.clone(),
            "chance": self.chance.get_state(),
        }

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        self.celsius = state["celsius"].clone()
        self.episode_length_buf = state["lengths"].clone()
        self.chance.set_state(state["chance"].cpu())
