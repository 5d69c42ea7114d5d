"""Runs CleanRL's PPO (ppo_continuous_action.py) on EnvPool's environments. Prints its speed as JSON.

    /tmp/peers/bin/python benchmarks/peers/envpool_cleanrl.py --steps 61440 --threads 1

It differs from CleanRL's file in four ways: environments come from EnvPool, in batches; observations are normalized by
moments of whole batches; the value loss is not clipped, like ours; and nothing is logged. The first round warms up and
does not count.
"""

from __future__ import annotations

import argparse
import json
import time

import envpool
import numpy as np
import torch
from ppo_arguments import CLIP, ENVIRONMENT, GAE_LAMBDA, GAMMA, HIDDEN, SEED, ppo_arguments
from torch import nn
from torch.distributions.normal import Normal

ENVIRONMENTS, ENTROPY = 64, 0.0


def layer_init(layer: nn.Linear, std: float = np.sqrt(2), bias: float = 0.0) -> nn.Linear:
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, observation_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.critic = self.network(observation_size, hidden, 1, std=1.0)
        self.actor_mean = self.network(observation_size, hidden, action_size, std=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, action_size))

    @staticmethod
    def network(inputs: int, hidden: int, outputs: int, std: float) -> nn.Sequential:
        return nn.Sequential(
            layer_init(nn.Linear(inputs, hidden)),
            nn.Tanh(),
            layer_init(nn.Linear(hidden, hidden)),
            nn.Tanh(),
            layer_init(nn.Linear(hidden, outputs), std=std),
        )

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        action_mean = self.actor_mean(x)
        probs = Normal(action_mean, torch.exp(self.actor_logstd.expand_as(action_mean)))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


class Moments:
    """Mean and variance of all observations so far (Chan et al.), like gymnasium's NormalizeObservation."""

    def __init__(self, size: int) -> None:
        self.mean, self.var, self.count = np.zeros(size), np.ones(size), 1e-4

    def normalised(self, batch: np.ndarray) -> torch.Tensor:
        count = len(batch)
        mean, var, total = batch.mean(0), batch.var(0), self.count + count
        delta = mean - self.mean
        self.var = (
            self.var * self.count + var * count + delta**2 * self.count * count / total
        ) / total
        self.mean, self.count = self.mean + delta * count / total, total
        return torch.as_tensor(
            np.clip((batch - self.mean) / np.sqrt(self.var + 1e-8), -10, 10), dtype=torch.float32
        )


def main(args: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    envs = envpool.make(ENVIRONMENT, "gymnasium", num_envs=ENVIRONMENTS, seed=SEED, num_threads=2)
    observation_size, action_size = envs.observation_space.shape[0], envs.action_space.shape[0]
    low, high = envs.action_space.low, envs.action_space.high
    agent = Agent(observation_size, action_size, HIDDEN)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    num_steps = args.batch // ENVIRONMENTS
    moments = Moments(observation_size)

    obs = torch.zeros((num_steps, ENVIRONMENTS, observation_size))
    actions = torch.zeros((num_steps, ENVIRONMENTS, action_size))
    logprobs, rewards, dones, values = (torch.zeros((num_steps, ENVIRONMENTS)) for _ in range(4))

    next_obs, next_done = moments.normalised(envs.reset()[0]), torch.zeros(ENVIRONMENTS)
    running, returns_of_episodes = np.zeros(ENVIRONMENTS), [0.0]
    rounds = -(-args.steps // args.batch)
    started_s = time.perf_counter()
    for round_index in range(rounds + 1):
        if round_index == 1:
            started_s = time.perf_counter()
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step], actions[step], logprobs[step] = value.flatten(), action, logprob
            observed, reward, terminated, truncated, _ = envs.step(
                np.clip(action.numpy(), low, high)
            )
            rewards[step] = torch.as_tensor(reward)
            done = np.logical_or(terminated, truncated)
            running += reward
            returns_of_episodes += list(running[done])
            running[done] = 0.0
            next_obs, next_done = (
                moments.normalised(observed),
                torch.as_tensor(done, dtype=torch.float32),
            )

        with torch.no_grad():
            next_value = agent.critic(next_obs).reshape(1, -1)
            advantages, lastgaelam = torch.zeros_like(rewards), 0
            for t in reversed(range(num_steps)):
                nextnonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                nextvalues = next_value if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = (
                    delta + GAMMA * GAE_LAMBDA * nextnonterminal * lastgaelam
                )
            returns = advantages + values

        b_obs, b_actions = obs.reshape(-1, observation_size), actions.reshape(-1, action_size)
        b_logprobs, b_advantages, b_returns = (
            logprobs.reshape(-1),
            advantages.reshape(-1),
            returns.reshape(-1),
        )
        b_inds = np.arange(len(b_obs))
        for _ in range(args.epochs):
            np.random.shuffle(b_inds)
            for start in range(0, len(b_inds), args.minibatch):
                mb_inds = b_inds[start : start + args.minibatch]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb_inds], b_actions[mb_inds]
                )
                logratio = newlogprob - b_logprobs[mb_inds]
                ratio = logratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - logratio).mean()
                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                    mb_advantages.std() + 1e-8
                )
                pg_loss = torch.max(
                    -mb_advantages * ratio, -mb_advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                ).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - ENTROPY * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    seconds = time.perf_counter() - started_s
    return {
        "steps": rounds * num_steps * ENVIRONMENTS,
        "seconds": seconds,
        "episode_return_mean": float(np.mean(returns_of_episodes[-20:])),
    }


if __name__ == "__main__":
    print(json.dumps(main(ppo_arguments(__doc__).parse_args())))
