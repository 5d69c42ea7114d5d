"""PPO on Hopper as Nitro's artifact runs it, in RLlib and here, next to ``experiments/paper``: a check of Table 1.

    PYTHONPATH=. /tmp/peers/bin/python papers/nitro/rllib_table1.py --python .venv/bin/python --work runs/table1

RLlib is in an environment of its own (benchmarks/peers/requirements.txt). --python names this project's interpreter.
The command may be interrupted and repeated: it keeps finished runs. The artifact (commit 2c725a9) sets the batch, 512
steps from each of 16 actors, and trains on all of it at once. All else are RLlib's defaults. Two of them are missing
here: RLlib's standard deviation depends on the observation, and its value loss is clipped to 10. No arm has the initial
weights of the artifact, whose RLlib 2.8 has its old API (normc), and this engine's Adam has ε = 1e-5 instead of 1e-8.
Evaluations take the likeliest actions.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.provenance import ROOT, origin

RESULT = Path(__file__).parent / "results" / "rllib_table1.json"
FILE = "experiments/paper/hopper-ppo.yaml"
ROUNDS, ACTORS, FRAGMENT_STEPS, EPISODES = 7, 16, 512, 20
EVERY = {
    "scaler.kind": "fixed",
    "scaler.actors_fixed": ACTORS,
    "actor.provisioned": 0,
    "fleet.processes": 1,
    "stop.max_rounds": ROUNDS,
    "evaluation.every_rounds": ROUNDS,
    "evaluation.episodes": EPISODES,
    "budget.usd": 100.0,
}
ARTIFACT = {
    "actor.fragment_steps": FRAGMENT_STEPS,
    "algorithm.ppo.minibatch_steps": ACTORS * FRAGMENT_STEPS,
    "algorithm.ppo.epochs": 30,
    "algorithm.ppo.gae_lambda": 1.0,
    "algorithm.ppo.normalize_observations": False,
}
OURS: dict[str, dict[str, Any]] = {
    "here, artifact": EVERY | ARTIFACT | {"network.initialisation": "default"},
    "here, artifact, orthogonal initial weights": EVERY | ARTIFACT,
    "here, experiments/paper": EVERY,
}
EXPLAINED = 5
"""Seeds of the arms that look for the reason of a difference."""
RLLIB: dict[str, dict[str, Any]] = {
    "RLlib, artifact": {},
    "RLlib, artifact, one standard deviation": {"free_log_std": True},
    "RLlib, artifact, value loss not clipped": {"vf_clip_param": 1e9},
}


def train_rllib(arm: str, seed: int) -> dict[str, Any]:
    batch, chosen = (
        ACTORS * FRAGMENT_STEPS,
        {"free_log_std": False, "vf_clip_param": 10.0} | RLLIB[arm],
    )
    algorithm = (
        PPOConfig()
        .environment("Hopper-v5")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=ACTORS,
            rollout_fragment_length=FRAGMENT_STEPS,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=batch,
            vf_clip_param=chosen["vf_clip_param"],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[256, 256],
                fcnet_activation="tanh",
                vf_share_layers=False,
                free_log_std=chosen["free_log_std"],
            )
        )
        .evaluation(
            evaluation_interval=1000,
            evaluation_duration=EPISODES,
            evaluation_num_env_runners=0,
            evaluation_config={"explore": False},
        )
        .debugging(seed=seed, log_level="ERROR")
    ).build_algo()
    try:
        rows = [algorithm.train()["env_runners"] for _ in range(ROUNDS)]
        played = algorithm.evaluate()["env_runners"]
    finally:
        algorithm.stop()
    config = algorithm.config
    return {
        "evaluation_return": float(played["episode_return_mean"]),
        "env_steps": int(rows[-1]["num_env_steps_sampled_lifetime"]),
        "training_returns": [float(row.get("episode_return_mean", np.nan)) for row in rows],
        "settings": {
            name: getattr(config, name)
            for name in (
                "lr",
                "num_epochs",
                "lambda_",
                "gamma",
                "clip_param",
                "kl_coeff",
                "kl_target",
                "vf_clip_param",
                "vf_loss_coeff",
                "entropy_coeff",
                "grad_clip",
                "minibatch_size",
            )
        },
    }


def train_here(arm: str, seed: int, python: str, out: Path) -> dict[str, Any]:
    options = [
        part
        for key, value in (OURS[arm] | {"seed": seed}).items()
        for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    subprocess.run(
        [python, "-m", "runtime", "train", FILE, "--out", str(out), "--resume", *options],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    rows = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    return {
        "evaluation_return": json.loads((out / "summary.json").read_text())[
            "evaluation_return_mean"
        ],
        "env_steps": rows[-1]["env_steps_total"],
        "training_returns": [row["episode_return_mean"] for row in rows],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=500 * 2**20,
    )
    for seed in range(options.seeds):
        for arm in (*(RLLIB if seed < EXPLAINED else ("RLlib, artifact",)), *OURS):
            runs = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
            if not any((run["arm"], run["seed"]) == (arm, seed) for run in runs):
                out = options.work / f"{arm.replace('/', '-')}-{seed}"
                found = (
                    train_here(arm, seed, options.python, out.resolve())
                    if arm in OURS
                    else train_rllib(arm, seed)
                )
                runs.append({"arm": arm, "seed": seed} | found)
                print(arm, seed, found["env_steps"], found["evaluation_return"], flush=True)
                RESULT.write_text(
                    json.dumps(
                        {
                            **origin("python papers/nitro/rllib_table1.py"),
                            "ray": ray.__version__,
                            "rounds": ROUNDS,
                            "here": OURS,
                            "runs": runs,
                        }
                    )
                    + "\n"
                )


if __name__ == "__main__":
    main()
