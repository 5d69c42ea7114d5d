"""RLlib's PPO with its own env runners, with a pool of actors, and with Nitro: Figure 12's comparison.

    PYTHONPATH=. /tmp/peers/bin/python benchmarks/rllib_figure12.py --python .venv/bin/python --work runs/figure12
    PYTHONPATH=. /tmp/peers/bin/python benchmarks/rllib_figure12.py --work runs/figure12 --summarise

The first command may be interrupted and repeated: it keeps finished runs. The second writes them to
benchmarks/results/rllib_figure12.json. For Q*bert, give both --environment, another --work, and --seeds 10: five were
planned, and five more were added after a look at them.

RLlib is in an environment of its own (benchmarks/peers/requirements.txt, and PyHessian without its dependencies);
--python names the pool's interpreter. All runs have the same settings and 51,200 steps. RLlib's two env runners play
four environments each, and the pool's eight actors share two processes, 256 steps for each batch. With Nitro, four to
twelve actors play 256 steps each. Hopper's evaluations take the likeliest actions. Q*bert's sample them, as in
training, and count the game's points, not training's clipped rewards.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.provenance import origin
from nitro_rl.integrations.rllib import ServerlessEnvRunner
from nitro_rl.integrations.rllib_nitro import NitroScaling
from runtime.scaler.nitro import NitroSettings

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "rllib_figure12.json"
ENV_STEPS, PLAYED_AT_ONCE, FRAGMENT_STEPS, RUNNERS = 51_200, 8, 256, 2
ACTORS_MIN, ACTORS_MAX = 4, 12
EPISODES = 20
HOPPER, QBERT = "Hopper-v5", "benchmarks.atari_ram:QbertRam-v0"
EVALUATION: dict[str, dict[str, Any]] = {
    HOPPER: {"explore": False},
    QBERT: {"env_config": {"is_clipped": False}},
}
KINDS = ("own", "pool", "nitro")


class Scaling(NitroScaling):
    settings = NitroSettings(actors_min=ACTORS_MIN, actors_max=ACTORS_MAX)


def configured(environment: str, kind: str, seed: int, python: str, out: Path) -> PPOConfig:
    class Runner(ServerlessEnvRunner):
        actors = PLAYED_AT_ONCE
        fragment_steps = FRAGMENT_STEPS
        pool = {
            "python": python,
            "budget_usd": 1.0,
            "out": out,
            "experiment": {
                "environment": {"id": environment},
                "actor": {"fragment_steps": FRAGMENT_STEPS},
                "seed": seed,
                "scaler": {"kind": "fixed", "actors_fixed": ACTORS_MAX},
                "fleet": {"processes": RUNNERS},
            },
        }

    config = PPOConfig().environment(environment)
    if kind == "nitro":
        config.callbacks(Scaling)
    if kind != "own":
        config.env_runners(env_runner_cls=Runner, num_env_runners=0)
    else:
        config.env_runners(
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=PLAYED_AT_ONCE // RUNNERS,
            rollout_fragment_length=FRAGMENT_STEPS,
        )
    actors_min = ACTORS_MIN if kind == "nitro" else PLAYED_AT_ONCE
    return (
        config.learners(num_learners=0)
        .training(
            train_batch_size_per_learner=actors_min * FRAGMENT_STEPS,
            minibatch_size=256,
            num_epochs=10,
            lr=3e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            vf_clip_param=1e9,
            vf_loss_coeff=0.5,
            grad_clip=0.5,
            use_kl_loss=False,
            entropy_coeff=0.0,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], free_log_std=environment == HOPPER, vf_share_layers=False
            )
        )
        .evaluation(
            evaluation_interval=1000,
            evaluation_duration=EPISODES,
            evaluation_num_env_runners=0,
            evaluation_config=EVALUATION[environment],
        )
        .debugging(seed=seed, log_level="ERROR")
    )


def run(environment: str, kind: str, seed: int, python: str, out: Path) -> dict[str, Any]:
    algorithm = configured(environment, kind, seed, python, out).build_algo()
    curve: list[dict[str, Any]] = []
    try:
        while not curve or curve[-1]["env_steps"] < ENV_STEPS:
            began_s = time.monotonic()
            found = algorithm.train()
            runners = found["env_runners"]
            curve.append(
                {
                    "env_steps": int(runners["num_env_steps_sampled_lifetime"]),
                    "seconds": time.monotonic() - began_s,
                    "return_mean": float(runners.get("episode_return_mean", np.nan)),
                    "spent_usd": float(runners.get("pool_spent_usd", 0.0)),
                    **found.get("nitro", {}),
                }
            )
        played = algorithm.evaluate()["env_runners"]
    finally:
        algorithm.stop()
    return {
        "kind": kind,
        "seed": seed,
        "curve": curve,
        "load": os.getloadavg()[0],
        "evaluation_return_mean": float(played["episode_return_mean"]),
    }


def summarised(work: Path) -> dict[str, Any]:
    runs = [json.loads(path.read_text()) for path in sorted(work.glob("*-*.json"))]
    found: dict[str, Any] = {
        "versions": {"ray": ray.__version__, "torch": torch.__version__, "numpy": np.__version__}
    }
    for kind in KINDS:
        mine = [one for one in runs if one["kind"] == kind]
        returns = [one["evaluation_return_mean"] for one in mine]
        found[kind] = {
            "evaluation_return_mean": round(float(np.mean(returns)), 1),
            "evaluation_returns": [round(one, 1) for one in returns],
            "env_steps": [one["curve"][-1]["env_steps"] for one in mine],
            "seconds": [round(sum(row["seconds"] for row in one["curve"]), 1) for one in mine],
            "loads": [round(one["load"], 1) for one in mine],
            "batches": [len(one["curve"]) for one in mine],
            "spent_usd": [round(one["curve"][-1]["spent_usd"], 6) for one in mine],
            "training_returns": [
                [
                    None if np.isnan(row["return_mean"]) else round(row["return_mean"], 1)
                    for row in one["curve"]
                ]
                for one in mine
            ],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--environment", choices=(HOPPER, QBERT), default=HOPPER)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--summarise", action="store_true")
    options = parser.parse_args()
    if options.summarise:
        command = f"python benchmarks/rllib_figure12.py --environment {options.environment} --seeds {options.seeds}"
        found = json.loads(RESULT.read_text()) | {
            options.environment: origin(command) | summarised(options.work)
        }
        RESULT.write_text(json.dumps(found, indent=2) + "\n")
        return
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    ray.init(
        num_cpus=RUNNERS + 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=200 * 2**20,
    )
    for seed in range(options.seeds):
        for kind in KINDS:
            path = options.work / f"{kind}-{seed}.json"
            if not path.exists():
                found = run(
                    options.environment,
                    kind,
                    seed,
                    options.python,
                    options.work / f"pool-records-{seed}-{time.time():.0f}",
                )
                path.write_text(json.dumps(found))
                print(kind, seed, found["evaluation_return_mean"], found["curve"][-1], flush=True)


if __name__ == "__main__":
    main()
