"""Where a pool pays: SAC of stable-baselines3 with a pool's actors, and PPO of this project, in a slow environment.

    nice python benchmarks/pool_pays.py train "SAC, 1 update a step" 0 1 2 3 4
    nice python benchmarks/pool_pays.py measure
    python benchmarks/pool_pays.py predict

needs the extra sb3. `train` learns InvertedDoublePendulum-v5 until ten evaluated episodes have a mean of 9,100,
Gymnasium's own threshold, and adds each run to benchmarks/results/pool_pays.json; one that is there is not done again.
How long a step takes does not change what is learned, so the environment is as fast as ever. `measure` finds CPU
seconds of SAC's learner and actors. `predict` adds `SLOWER_S` to each step, and counts with the functions of
`python -m runtime plan`: times and dollars are **modelled**. Evaluations are not counted.

Variants were chosen with seeds 100 and 101, and confirmed with others: PPO by fewest steps; SAC with steps of 5 ms and
a trainer on one's own machine, the cheapest of those that are as fast as the fastest within the 15 % of
where_serverless_pays.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from stable_baselines3 import SAC  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

import nitro_rl  # noqa: E402
from benchmarks.provenance import origin  # noqa: E402
from benchmarks.where_serverless_pays import verdict  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from nitro_rl.integrations.sb3.policies import squashed_gaussian  # noqa: E402
from runtime.config.loading import load_experiment  # noqa: E402
from runtime.cost.model import POOL_USD_PER_HOUR  # noqa: E402
from runtime.cost.prices import PRICES  # noqa: E402
from runtime.cost.rates import tabled  # noqa: E402
from runtime.cost.start import FUNCTION_S  # noqa: E402
from runtime.planning.prediction import FAN_OUT_S, Prediction, Sample, Way, predict_all  # noqa: E402
from runtime.planning.workload import Workload  # noqa: E402
from runtime.training.costs import make_cost_model  # noqa: E402
from runtime.training.preflight import preflight  # noqa: E402

HOPPER, RESULTS = (
    ROOT / "experiments" / "hopper-fixed.yaml",
    ROOT / "benchmarks" / "results" / "pool_pays.json",
)
ENVIRONMENT, THRESHOLD, EPISODES = "InvertedDoublePendulum-v5", 9100.0, 10
CHOOSING = (100, 101)
SLOWER_S = (0.005, 0.02, 0.1)
POOL = "trainer on one's own machine, actors on Lambda"
ACTORS, STEPS, EVERY_STEPS, MOST_STEPS, BATCH = 16, 32, 1024, 40_960, 16 * 32
"""Of SAC: a call's actors and their steps, steps between evaluations, and of a run at most."""
SAC_SETTINGS = {"gamma": 0.98, "tau": 0.02, "learning_rate": 7.3e-4}
"""Those of rl-zoo3 for PyBullet's InvertedDoublePendulum; networks and the rest are stable-baselines3's own."""
PPO_SETTINGS = [
    f"environment.id={ENVIRONMENT}",
    "stop.target_return=null",
    "stop.max_steps=300000",
    "budget.usd=20",
    "algorithm.ppo.learning_rate_schedule=constant",
    f"evaluation.episodes={EPISODES}",
    "fleet.processes=1",
]
ZOO = [
    "algorithm.ppo.discount=0.98",
    "algorithm.ppo.gae_lambda=0.8",
    "algorithm.ppo.clip=0.4",
    "algorithm.ppo.epochs=10",
]
"""rl-zoo3's for MuJoCo's InvertedDoublePendulum, but for the learning rate and the sizes of rounds and minibatches."""
VARIANTS: dict[str, Any] = {
    "SAC, 1 update a step": 1,
    "SAC, 1 update for 4 steps": 4,
    "PPO, hopper.yaml": ["evaluation.every_rounds=1"],
    "PPO, rl-zoo3": [*ZOO, "evaluation.every_rounds=1"],
    "PPO, rl-zoo3, rounds of 512": [
        *ZOO,
        "scaler.actors_fixed=16",
        "actor.fragment_steps=32",
        "evaluation.every_rounds=2",
    ],
}
"""Steps for one update, or settings over those of experiments/hopper-fixed.yaml."""


def make_pool(out: str, seed: int) -> nitro_rl.ActorPool:
    return nitro_rl.ActorPool(
        {
            "environment": {"id": ENVIRONMENT},
            "seed": seed,
            "actor": {"fragment_steps": STEPS},
            "scaler": {"kind": "fixed", "actors_fixed": ACTORS},
            "fleet": {"processes": 1},
        },
        budget_usd=10.0,
        out=out,
        is_quiet=True,
    )


def make_sac(pool: nitro_rl.ActorPool, seed: int, updates: int) -> SAC:
    """Makes a model with so many updates after each call of the pool."""
    return sb3.attach(
        SAC(
            "MlpPolicy",
            sb3.PoolEnv(pool, ACTORS),
            seed=seed,
            device="cpu",
            train_freq=STEPS,
            gradient_steps=updates,
            **SAC_SETTINGS,
        ),
        pool,
    )


def train_sac(steps_an_update: int, seed: int, out: str) -> dict[str, Any]:
    """Learns until the threshold is reached; counts CPU seconds of the learner's process."""
    with make_pool(out, seed) as pool:
        model, evaluated = (
            make_sac(pool, seed, BATCH // steps_an_update),
            make_vec_env(ENVIRONMENT, EPISODES, seed=10_000 + seed),
        )
        learner_s, reached = 0.0, 0.0
        while reached < THRESHOLD and model.num_timesteps < MOST_STEPS:
            started_s = time.process_time()
            model.learn(EVERY_STEPS, reset_num_timesteps=False)
            learner_s += time.process_time() - started_s
            reached = float(evaluate_policy(model, evaluated, EPISODES)[0])
        return {
            "env_steps": model.num_timesteps,
            "return_mean": reached,
            "updates": model._n_updates,
            "calls": len(pool.rows),
            "learner_cpu_s": round(learner_s, 2),
        }


class Stop(nitro_rl.Callback):
    """Ends a run at the threshold; as its target, it would be evaluated less often."""

    def on_evaluation(self, row: Any, run: Any) -> None:
        if row.evaluation_return_mean >= THRESHOLD:
            run.stop("the threshold")


def train_ppo(settings: list[str], seed: int, out: str) -> dict[str, Any]:
    """Learns until the threshold is reached."""
    nitro_rl.train(
        HOPPER,
        out=out,
        is_quiet=True,
        callbacks=[Stop()],
        overrides=[*PPO_SETTINGS, *settings, f"seed={seed}"],
    )
    rows = [json.loads(line) for line in (Path(out) / "rounds.jsonl").read_text().splitlines()]
    best = max(
        (row for row in rows if row["evaluation_round"]),
        key=lambda row: row["evaluation_return_mean"],
    )
    return {
        "env_steps": rows[best["evaluation_round"] - 1]["env_steps_total"],
        "return_mean": best["evaluation_return_mean"],
        "rounds": best["evaluation_round"],
    }


def loaded(changes: Sequence[str]) -> Any:
    return load_experiment(
        HOPPER, [*PPO_SETTINGS, *changes, "evaluation.every_rounds=0", "cache.kind=none"]
    )


def measure(repeats: int = 3) -> dict[str, Any]:
    """Returns CPU seconds of each unit of both, on the table's machine.

    PPO's are the table's of Hopper-v5, which has the same network. What is measured is divided by how much slower this
    machine is now than the table's: by what a minibatch of 128 takes.
    """
    started_s = time.process_time()
    import onnxruntime as _  # noqa: F401, PLC0415  # Actors import it when they start.

    import_s = time.process_time() - started_s
    hopper = preflight(load_experiment(HOPPER).resolved())[1]
    work, table, found = Workload(hopper), dict(tabled(hopper)), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, make_pool(f"{folder}/run", 0) as pool:
        model = make_sac(pool, 0, 0)
        for repeat in range(repeats + 1):
            work.measure()
            calls, started_s = len(pool.rows), time.process_time()
            model.learn(4 * BATCH, reset_num_timesteps=False)
            found["call_s"].append((time.process_time() - started_s) / (len(pool.rows) - calls))
            started_s = time.process_time()
            model.train(gradient_steps=40, batch_size=model.batch_size)
            found["update_s"].append((time.process_time() - started_s) / 40)
            pool.sample(squashed_gaussian(model)({}, is_random=False), actors=1, steps=STEPS)
            found["fragment_s"].append(pool.rows[-1].actor_cpu_s_mean)
            if not repeat:  # It warmed up.
                work.seconds.clear()
                found.clear()
    here, sac = work.units(), {name: statistics.median(seconds) for name, seconds in found.items()}
    slower = (here["gradient_step_s"] + 128 * here["sample_s"]) / (
        table["gradient_step_s"] + 128 * table["sample_s"]
    )
    ppo = table | {unit: here[unit] / slower for unit in ("trajectory_s", "round_s")}
    return {
        "slower_than_table": slower,
        "SAC_here": sac,
        "PPO": ppo,
        "SAC": ppo
        | {
            "init_s": ppo["init_s"] + import_s / slower,
            "step_s": sac["fragment_s"] / slower / STEPS,
            "gradient_step_s": sac["update_s"] / slower,
            "sample_s": 0.0,
            "trajectory_s": 0.0,
            "invocation_s": 0.0,
            "round_s": max(0.0, sac["call_s"] / slower - ACTORS * FAN_OUT_S),
        },
    }


def predictions(
    changes: Sequence[str], sample: Sample, environment: Any, instance_usd_per_s: float, steps: int
) -> dict[str, Prediction]:
    """Returns all ways of `plan` by name, and those with a trainer on a machine of one's own.

    That machine costs nothing, and is as fast as a c7i.large, whose ways they are made from.
    """
    found = [
        one
        for one in predict_all(loaded(changes), sample, environment, PRICES, steps=steps)
        if one.way.changes
    ]
    for one in found[:]:
        if one.way.name.startswith("c7i.large") and one.way.name.endswith(
            "arm64 1769 MiB, no cache"
        ):
            seconds = FUNCTION_S + one.actors_s + one.learner_s
            usd = (
                one.usd
                - instance_usd_per_s * (one.seconds - FUNCTION_S)
                + POOL_USD_PER_HOUR * seconds / 3600
            )
            found.append(
                replace(
                    one,
                    way=Way(one.way.name.replace("c7i.large", POOL), POOL, {}),
                    seconds=seconds,
                    usd=usd,
                    start_s=FUNCTION_S,
                )
            )
    return {one.way.name: one for one in found}


def over_seeds(values: Iterable[float], digits: int) -> list[float]:
    """Returns mean, least and most."""
    found = list(values)
    return [round(one, digits) for one in (statistics.mean(found), min(found), max(found))]


def predict(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each variant and each time of a step: ways chosen for the mean seed, with ranges over seeds."""
    environment, fitted = preflight(
        loaded(["learner.instance_types=[c7i.large]"]).resolved(is_deployed=True)
    )
    usd_per_s, rows = (
        make_cost_model(fitted, environment.spaces, PRICES).burn_usd_per_hour / 3600,
        [],
    )
    for variant, seeds in itertools.product(VARIANTS, ("choosing", "confirming")):
        # The updates of SAC are minibatches of PPO in 8 epochs, so that none is of a single sample.
        changes = (
            VARIANTS[variant]
            if variant.startswith("PPO")
            else [
                f"scaler.actors_fixed={ACTORS}",
                f"actor.fragment_steps={STEPS}",
                "algorithm.ppo.epochs=8",
                f"algorithm.ppo.minibatch_steps={8 * VARIANTS[variant]}",
            ]
        )
        units = result["measured"][variant[:3]]
        steps = [
            row["env_steps"]
            for row in result["runs"]
            if row["variant"] == variant and (row["seed"] in CHOOSING) == (seeds == "choosing")
        ]
        for slower_s in SLOWER_S if steps else ():
            sample = Sample({**units, "step_s": units["step_s"] + slower_s}, 0, STEPS)
            mean, *each = [
                predictions(changes, sample, environment, usd_per_s, count)
                for count in (round(statistics.mean(steps)), *steps)
            ]
            found = verdict(one for one in mean.values() if one.way.kind != POOL)
            named = [
                found[f"{best}_{kind}"]["way"]
                for kind in ("instance", "serverless")
                for best in ("cheapest", "fastest")
            ]
            named += [
                next(name for name in mean if name.startswith(f"all on one c8g.{size},"))
                for size in ("large", "2xlarge")
            ]
            if variant.startswith("SAC"):
                named.append(
                    min(
                        (name for name in mean if name.startswith(POOL)),
                        key=lambda name: mean[name].seconds,
                    )
                )
            rows.append(
                {
                    "variant": variant,
                    "seeds": seeds,
                    "slower_s": slower_s,
                    "env_steps": over_seeds(steps, 0),
                    **{key: found[key] for key in ("verdict", "speed", "dollars")},
                    "ways": [
                        {
                            "way": name,
                            "minutes": over_seeds((one[name].seconds / 60 for one in each), 2),
                            "usd": over_seeds((one[name].usd for one in each), 4),
                            "minutes_of_start": round(mean[name].start_s / 60, 2),
                        }
                        for name in dict.fromkeys(named)
                    ],
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "measure", "predict"))
    parser.add_argument("variant", nargs="?", choices=VARIANTS)
    parser.add_argument("seeds", nargs="*", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}

    def write(**more: Any) -> None:
        result.update(origin("python benchmarks/pool_pays.py") | more)
        lists = {
            name: ",\n  ".join(map(json.dumps, result.get(name, [])))
            for name in ("runs", "predicted")
        }
        text = json.dumps({**result, **dict.fromkeys(lists, [])}, indent=1)
        for name, rows in lists.items():
            text = text.replace(f'"{name}": []', f'"{name}": [\n  {rows}\n ]')
        RESULTS.write_text(text + "\n")

    if options.what == "measure":
        write(measured=measure())
    if options.what == "predict":
        write(prices=f"{PRICES.region}, {PRICES.as_of}", predicted=predict(result))
    for seed in options.seeds:
        if (options.variant, seed) not in [(row["variant"], row["seed"]) for row in result["runs"]]:
            chosen = VARIANTS[options.variant]
            with tempfile.TemporaryDirectory() as folder:
                found = (train_sac if isinstance(chosen, int) else train_ppo)(
                    chosen, seed, f"{folder}/run"
                )
            write(runs=[*result["runs"], {"variant": options.variant, "seed": seed, **found}])
            print(json.dumps(result["runs"][-1]), flush=True)


if __name__ == "__main__":
    main()
