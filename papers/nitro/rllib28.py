"""The authors' trainer: PPO of RLlib 2.8's old API stack on Hopper, with the settings of their artifact.

Needs an environment of its own with Python 3.11, made in this order:

    python3.11 -m venv rllib28
    rllib28/bin/pip install 'ray[rllib]==2.8.1' gymnasium==0.28.1 'numpy<2' mujoco==2.3.3 torch==2.13.0 pyarrow==14.0.2
    rllib28/bin/pip install --no-deps setuptools==75.8.0
    rllib28/bin/python papers/nitro/rllib28.py

Adds to papers/results/r1-rllib.json after each of ten seeds, and continues where it ended. Each has the rounds of study
r1 in papers/protocol.yaml. Sixteen environments in one process play what 16 workers would. Hopper is v4, and the
artifact's v3: MuJoCo 2.1's bindings no longer build.
"""

import json
from pathlib import Path

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms import ppo

RESULTS = Path(__file__).parents[1] / "results" / "r1-rllib.json"
ENVIRONMENT = "Hopper-v4"
SEEDS, ROUNDS, EPISODES = 10, 7, 20
ACTORS, STEPS = 16, 512


def train(seed):
    """Returns the rounds' columns, and the mean return of new episodes with sampled actions."""
    algorithm = (
        ppo.PPOConfig()
        .framework("torch")
        .environment(ENVIRONMENT)
        .resources(num_gpus=0)
        .rollouts(num_rollout_workers=0, num_envs_per_worker=ACTORS, rollout_fragment_length=STEPS)
        .debugging(log_level="ERROR", seed=seed)
        .rl_module(_enable_rl_module_api=False)
        .training(
            train_batch_size=ACTORS * STEPS,
            sgd_minibatch_size=ACTORS * STEPS,
            _enable_learner_api=False,
        )
        .build()
    )
    columns = {"episode_return_mean": [], "episodes_finished": [], "kl": []}
    for _ in range(ROUNDS):
        result = algorithm.train()
        count = result["episodes_this_iter"]
        returns = result["hist_stats"]["episode_reward"][-count:]
        learned = result["info"]["learner"]["default_policy"]["learner_stats"]
        columns["episode_return_mean"].append(round(float(np.mean(returns)), 3))
        columns["episodes_finished"].append(count)
        columns["kl"].append(round(float(learned["kl"]), 5))
    columns["evaluation_return_mean"] = evaluate(algorithm, seed)
    algorithm.stop()
    return columns


def evaluate(algorithm, seed):
    """Returns the mean return of new episodes."""
    environment = gymnasium.make(ENVIRONMENT)
    returns = []
    for episode in range(EPISODES):
        observation, _ = environment.reset(seed=10_000 * seed + episode)
        total, is_over = 0.0, False
        while not is_over:
            action = algorithm.compute_single_action(observation, explore=True)
            observation, reward, terminated, truncated, _ = environment.step(action)
            total += reward
            is_over = terminated or truncated
        returns.append(total)
    return round(float(np.mean(returns)), 3)


def main():
    """Trains the seeds that are missing."""
    torch.set_num_threads(1)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, object_store_memory=10**8)
    runs = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else {}
    for seed in range(SEEDS):
        if str(seed) not in runs:
            runs[str(seed)] = train(seed)
            content = {"ray": ray.__version__, "environment": ENVIRONMENT, "runs": runs}
            RESULTS.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
