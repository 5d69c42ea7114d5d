"""Evolution strategies on CartPole: many short actors, each with a policy of its own.

    python -m pip install -e .    # once, in the clone
    python docs/examples/evolution.py

Actors take no seeds. Each gets a whole policy instead, 58 numbers in 535 bytes, and sends its whole fragment back, of
which only the mean return counts here.

Paper: Salimans et al. 2017, Algorithm 1, with mirrored noise and ranks instead of returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nitro_rl import ActorPool, BudgetError, numpy_policy

EXPERIMENT = {
    "environment": {"id": "CartPole-v1", "truncate_at_fragment": True},
    "actor": {"fragment_steps": 500},
    "scaler": {"kind": "fixed", "actors_fixed": 1},
    "seed": 1,
}
PAIRS, SPREAD, LEARNING_RATE = 16, 1.0, 16.0


def policy_of(numbers: np.ndarray) -> bytes:
    """8 tanh units between 4 observations and the logits of 2 actions. The pole's angle is small, so it is scaled."""
    first, first_bias, last, last_bias = np.split(numbers, [32, 40, 56])
    return numpy_policy(
        [(first.reshape(8, 4), first_bias), (last.reshape(2, 8), last_bias)],
        observation_mean=np.zeros(4),
        observation_std=[1, 1, 0.1, 1],
    )


def evolve(pool: ActorPool, generations: int) -> Iterator[float]:
    """Improves a policy, and yields the mean return of each generation."""
    drawn, mean = np.random.default_rng(1), np.zeros(58)
    for _ in range(generations):
        noise = drawn.normal(size=(PAIRS, 58))
        noise = np.concatenate([noise, -noise])
        calls = [pool.submit(policy_of(mean + SPREAD * one), actors=1).number for one in noise]
        found = {one.call: one.episode_returns.mean() for one in pool.as_completed()}
        returns = np.array([found[number] for number in calls])
        ranks = returns.argsort().argsort() / (len(returns) - 1) - 0.5
        mean += LEARNING_RATE / (len(noise) * SPREAD) * ranks @ noise
        yield float(returns.mean())


if __name__ == "__main__":
    with ActorPool(EXPERIMENT, budget_usd=0.05, out="runs/evolution", is_quiet=True) as pool:
        try:
            for generation, mean_return in enumerate(evolve(pool, 10), 1):
                print(f"{generation:3}  return {mean_return:5.1f}  ${pool.spent_usd:.4f}")
        except BudgetError as error:
            print(error)
