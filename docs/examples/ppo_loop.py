"""PPO on CartPole in one file, with a network and a loop of your own. An actor pool plays the episodes.

python -m pip install -e .    # once, in the clone
python docs/examples/ppo_loop.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from nitro_rl import ActorPool, BudgetError, Trajectory, numpy_policy

EXPERIMENT = {
    "environment": {"id": "CartPole-v1"},
    "actor": {"fragment_steps": 256},
    "scaler": {"kind": "fixed", "actors_fixed": 4},
    "seed": 1,
}
DISCOUNT, GAE_LAMBDA, CLIP, EPOCHS, MINIBATCH = 0.99, 0.95, 0.2, 10, 64


def network(outputs: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, 64),
        torch.nn.Tanh(),
        torch.nn.Linear(64, outputs),
    )


def weights_of(actor: torch.nn.Sequential) -> bytes:
    """The actor's network as actors get it. They run it in numpy."""
    return numpy_policy(
        [
            (layer.weight.detach().numpy(), layer.bias.detach().numpy())
            for layer in actor
            if isinstance(layer, torch.nn.Linear)
        ]
    )


def advantages_of(trajectory: Trajectory, critic: torch.nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantages and the returns that the critic should predict, both ``[T]``."""
    with torch.no_grad():
        values, next_values = (
            critic(torch.tensor(observations)).numpy()[:, 0]
            for observations in (trajectory.observations, trajectory.next_observations)
        )
    deltas = trajectory.rewards + DISCOUNT * next_values * ~trajectory.terminated - values
    goes_on = ~(trajectory.terminated | trajectory.truncated)
    advantages, last = np.zeros(len(trajectory)), 0.0
    for step in reversed(range(len(trajectory))):
        advantages[step] = last = deltas[step] + DISCOUNT * GAE_LAMBDA * goes_on[step] * last
    return advantages, advantages + values


def learn(pool: ActorPool, iterations: int) -> Iterator[float]:
    """Trains, and yields the mean return of the last 20 episodes after each iteration."""
    torch.manual_seed(1)
    recent: deque[float] = deque(maxlen=20)
    actor, critic = network(2), network(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    for _ in range(iterations):
        trajectories = pool.sample(weights_of(actor), actors=4)
        estimates = [advantages_of(one, critic) for one in trajectories]
        observations, actions, old_log_probs = (
            torch.from_numpy(np.concatenate([getattr(one, name) for one in trajectories]))
            for name in ("observations", "actions", "log_probs")
        )
        advantages, returns = (
            torch.from_numpy(np.concatenate(arrays)).float()
            for arrays in zip(*estimates, strict=True)
        )
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(actions)).split(MINIBATCH):
                distribution = torch.distributions.Categorical(logits=actor(observations[chosen]))
                ratio = (distribution.log_prob(actions[chosen]) - old_log_probs[chosen]).exp()
                advantage = advantages[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = -torch.min(
                    ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage
                ).mean()
                value_loss = (critic(observations[chosen])[:, 0] - returns[chosen]).pow(2).mean()
                optimizer.zero_grad()
                (policy_loss + 0.5 * value_loss - 0.01 * distribution.entropy().mean()).backward()
                torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
        recent.extend(np.concatenate([one.episode_returns for one in trajectories]))
        yield float(np.mean(recent))


if __name__ == "__main__":
    torch.set_num_threads(1)  # Actors need the other cores.
    with ActorPool(EXPERIMENT, budget_usd=0.05, out="runs/ppo_loop", is_quiet=True) as pool:
        try:
            for iteration, mean_return in enumerate(learn(pool, 15), 1):
                print(f"{iteration:3}  return {mean_return:5.1f}  ${pool.spent_usd:.4f}")
        except BudgetError as error:
            print(error)
