"""Compares stable-baselines3's algorithms with a pool's actors and with their own environments.

    python benchmarks/sb3_parity.py ppo --seeds 5 --work runs/sb3_parity
    python benchmarks/sb3_parity.py sac --seeds 5 --work runs/sb3_parity
    python benchmarks/sb3_parity.py sac-hopper --seeds 5 --side pool

Needs the extra sb3. Each run is added to benchmarks/results/sb3_parity.json when it ends, and is not repeated.
Two commands may run beside each other. The two sides differ only in who takes the steps, with one exception: SAC's own
side trains after each step of one environment, stable-baselines3's default, and the pool's side a hundred times after a
hundred steps of four actors. The return is the mean of 20 new episodes with the policy's best actions.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nitro_rl  # noqa: E402
from benchmarks.provenance import origin  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "sb3_parity.json"
EPISODES = 20
SIDES = ("pool", "stable-baselines3")
BENCHMARKS: dict[str, dict[str, Any]] = {
    "ppo": {
        "environment": "Hopper-v5",
        "steps": 100_000,
        "actors": 8,
        "fragment": 256,
        "is_normalised": True,
        "settings": {"n_steps": 256},
    },
    "sac": {
        "environment": "Pendulum-v1",
        "steps": 20_000,
        "actors": 4,
        "fragment": 25,
        "is_normalised": False,
        "settings": {"learning_rate": 1e-3},
    },
    # rl-zoo3's settings for Hopper-v4.
    "sac-hopper": {
        "environment": "Hopper-v5",
        "steps": 100_000,
        "actors": 4,
        "fragment": 25,
        "is_normalised": False,
        "settings": {"learning_starts": 10_000},
    },
}


def make_model(name: str, side: str, seed: int) -> Any:
    chosen = BENCHMARKS[name]
    count = chosen["actors"] if side == "pool" or name == "ppo" else 1
    env = make_vec_env(chosen["environment"], n_envs=count, seed=seed)
    if chosen["is_normalised"]:
        env = VecNormalize(env, norm_reward=False)
    if name == "ppo":
        return PPO("MlpPolicy", env, seed=seed, device="cpu", **chosen["settings"])
    ratio = {"train_freq": chosen["fragment"], "gradient_steps": -1} if side == "pool" else {}
    return SAC("MlpPolicy", env, seed=seed, device="cpu", **chosen["settings"], **ratio)


def run(name: str, side: str, seed: int, work: Path) -> dict[str, Any]:
    chosen = BENCHMARKS[name]
    model = make_model(name, side, seed)
    found = {"benchmark": name, "side": side, "seed": seed}
    began_s = time.monotonic()
    if side == "pool":
        experiment = {
            "environment": {"id": chosen["environment"]},
            "seed": seed,
            "scaler": {"kind": "fixed", "actors_fixed": chosen["actors"]},
            "actor": {"fragment_steps": chosen["fragment"]},
            "fleet": {"processes": 1},
        }
        with nitro_rl.ActorPool(
            experiment, budget_usd=10.0, out=work / f"{name}-{seed}-{time.time_ns()}", is_quiet=True
        ) as pool:
            sb3.attach(model, pool).learn(chosen["steps"])
            found["modelled_usd"] = pool.spent_usd
    else:
        model.learn(chosen["steps"])
    found |= {"env_steps": model.num_timesteps, "seconds": time.monotonic() - began_s}
    env = make_vec_env(chosen["environment"], n_envs=4, seed=10_000 + seed)
    if (normalised := model.get_vec_normalize_env()) is not None:
        env = VecNormalize(env, training=False, norm_reward=False)
        env.obs_rms = normalised.obs_rms
    returns, _ = evaluate_policy(model, env, EPISODES, return_episode_rewards=True)
    return found | {"return_mean": float(np.mean(returns)), "return_std": float(np.std(returns))}


def read_rows() -> list[dict[str, Any]]:
    """Returns the runs that have ended."""
    return json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, nargs="*", help="only these")
    parser.add_argument("--work", type=Path, default=Path("runs/sb3_parity"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seeds):
        for side in options.side or SIDES:
            if (options.benchmark, side, seed) in {
                (row["benchmark"], row["side"], row["seed"]) for row in read_rows()
            }:
                continue
            found = run(options.benchmark, side, seed, options.work)
            rows = [*read_rows(), found]
            print(json.dumps(found), flush=True)
            summary = [
                {
                    "benchmark": name,
                    "side": one,
                    "seeds": len(found),
                    "return_mean": float(np.mean(found)),
                    "return_min": min(found),
                    "return_max": max(found),
                }
                for name in BENCHMARKS
                for one in SIDES
                if (
                    found := [
                        row["return_mean"]
                        for row in rows
                        if (row["benchmark"], row["side"]) == (name, one)
                    ]
                )
            ]
            RESULTS.write_text(
                json.dumps(
                    {
                        **origin("python benchmarks/sb3_parity.py " + " | ".join(BENCHMARKS)),
                        "benchmarks": BENCHMARKS,
                        "summary": summary,
                        "runs": rows,
                    },
                    indent=1,
                )
                + "\n"
            )


if __name__ == "__main__":
    main()
