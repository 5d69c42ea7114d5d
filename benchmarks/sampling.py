"""Environment steps per CPU-second of one actor, beside what actors usually do.

    python benchmarks/sampling.py [ENVIRONMENT_ID ...]

Each contender samples fragments in turn, several times over, in one process on one thread; the ratio to the actor here
is taken pair by pair, so that a machine whose speed drifts does not decide. Prints JSON; keep it under
benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from lambda_actor.environments import make_environment  # noqa: E402
from lambda_actor.policy import Policy  # noqa: E402
from lambda_actor.rollout import roll_out  # noqa: E402
from runtime.config.schema import AlgorithmSection  # noqa: E402
from runtime.learner.ppo import Ppo  # noqa: E402
from runtime.learner.ppo_settings import PpoSettings  # noqa: E402

STEPS, REPEATS = 1024, 7


def our_actor(environment_id: str, learner: Ppo):
    environment = make_environment(environment_id)
    policy = Policy.from_bytes(learner.weights())

    def sample(repeat: int) -> None:
        roll_out(environment, policy, fragment_steps=STEPS, seed=0, round_index=repeat, slot=0)

    return sample


def torch_actor(environment_id: str, learner: Ppo):
    """gym.make with its default wrappers; actor, critic and Normal in torch at each step."""
    environment = gymnasium.make(environment_id)

    @torch.no_grad()
    def sample(repeat: int) -> None:
        torch.manual_seed(repeat)
        observation, _ = environment.reset(seed=repeat)
        for _ in range(STEPS):
            inputs = torch.as_tensor(observation, dtype=torch.float32)[None]
            means, log_stds = learner.policy(inputs).chunk(2, dim=-1)
            learner.critic(inputs)
            distribution = torch.distributions.Normal(means, log_stds.exp())
            action = distribution.sample()
            distribution.log_prob(action).sum(-1)
            clipped = np.clip(action[0].numpy(), environment.action_space.low, environment.action_space.high)
            observation, _, terminated, truncated, _ = environment.step(clipped)
            if terminated or truncated:
                observation, _ = environment.reset()

    return sample


def random_actions(environment_id: str, learner: Ppo):
    """gym.make with its default wrappers and no policy at all."""
    environment = gymnasium.make(environment_id)
    stream = np.random.default_rng(0)
    low, high = environment.action_space.low, environment.action_space.high

    def sample(repeat: int) -> None:
        environment.reset(seed=repeat)
        for _ in range(STEPS):
            *_, terminated, truncated, _ = environment.step(stream.uniform(low, high).astype(np.float32))
            if terminated or truncated:
                environment.reset()

    return sample


def measure(environment_id: str) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    probe = make_environment(environment_id)
    learner = Ppo(probe.spaces, AlgorithmSection(ppo=PpoSettings(normalize_observations=True)), seed=0)
    contenders = {make.__name__: make(environment_id, learner) for make in (our_actor, torch_actor, random_actions)}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(REPEATS + 1):
        for name, sample in contenders.items():
            started_s = time.process_time()
            sample(repeat)
            if repeat > 0:  # the first warms up
                rates[name].append(STEPS / (time.process_time() - started_s))
    return {name: {
        "steps_per_cpu_s_median": round(statistics.median(values)),
        "steps_per_cpu_s_min": round(min(values)), "steps_per_cpu_s_max": round(max(values)),
        "ratio_to_our_actor_median": round(statistics.median(
            a / b for a, b in zip(values, rates["our_actor"], strict=True)), 3),
    } for name, values in rates.items()}


if __name__ == "__main__":
    ids = sys.argv[1:] or ["Hopper-v5", "Walker2d-v5", "Humanoid-v5"]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.strip()
    print(json.dumps({
        "command": f"python benchmarks/sampling.py {' '.join(sys.argv[1:])}".strip(), "commit": commit,
        "date": time.strftime("%Y-%m-%d"), "hardware": f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
                     "gymnasium": gymnasium.__version__},
        "environments": {environment_id: measure(environment_id) for environment_id in ids},
    }, indent=2))
