"""Trains Stellaris's arms in virtual time: effects of asynchrony, bound, rates and truncation. Six, and two on Hopper.

    python -m papers.stellaris.arms hopper --work WORK [--jobs 2]

Each arm is experiments/hopper-stellaris.yaml with other settings of Stellaris and of the minibatch, in one
of three environments. Gradients arrive after the durations in WORKLOAD_durations.json. Continues where it ended, even
in the middle of a training, with the same numbers. Results do not depend on the load of the machine. A round takes
about 1.3 CPU seconds on Hopper, 1.8 on Walker2d and 3.2 on Humanoid, whose runs are therefore shorter. All three take
two to three hours of one core. Writes papers/stellaris/results/WORKLOAD.json after each finished run.
`papers.stellaris.page` makes a page of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, origin
from papers.estimates import SEEDS
from papers.pricing import lambda_speed, pricing_of, units_of
from papers.stellaris.virtual import Durations, VirtualSettings
from papers.trainings import (
    Training,
    asked_for,
    columns,
    is_finished,
    records,
    train_all,
)
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB
from runtime.experiment.loading import load_experiment
from runtime.money.model import learner_function_prices
from runtime.money.prices import PRICES
from runtime.records.files import write_atomically
from runtime.records.rows import RoundRow

RESULTS = Path(__file__).parent / "results"
FILE = "experiments/hopper-stellaris.yaml"
SERIES = (
    "actor_count",
    "env_steps_total",
    "priced_s",
    "priced_usd",
    "evaluation_return_mean",
    "evaluation_round",
    "episode_return_mean",
    "episodes_finished",
    "gradients",
    "gradients_lost",
    "aggregations",
    "gradient_staleness_mean",
    "staleness_bound",
    "truncated_fraction",
    "kl",
)


@dataclass(frozen=True)
class Workload:
    """An environment.

    Attributes:
        rounds: Rounds of a run, of 4,096 steps each.
        target_return: Target of an evaluation, chosen before any arms were compared in it.
        is_combined: Whether Nitro's scaler is also tried in it.
    """

    environment: str
    rounds: int
    target_return: float
    is_combined: bool = False


WORKLOADS = {
    "hopper": Workload("Hopper-v5", 60, 600.0, is_combined=True),
    "walker2d": Workload("Walker2d-v5", 40, 400.0),
    "humanoid": Workload("Humanoid-v5", 30, 350.0),
}
SHARED = {
    "learner.kind": "papers.stellaris.virtual:VirtualSettings",
    "learner.threads": 1,
    "fleet.processes": 1,
    "learner.update_timeout_s": 3600,
    "evaluation.every_rounds": 5,
}
"""Settings of all arms. One thread and one actor process give the same runs as more of them. The file has no target:
with one, evaluations would begin near it, instead of every five rounds."""
NITRO = {"scaler.kind": "nitro", "scaler.actors_min": 8, "scaler.actors_max": 32}
"""The combined arms' scaler, instead of 16 actors in each round. Its decay is the paper's, for 50 rounds."""


def _arm(
    learners: int, minibatch: int, decay: float | None, root: float | None, truncation: float | None
) -> Mapping[str, object]:
    return {
        "algorithm.minibatch_steps": minibatch,
        "learner.learners": learners,
        "learner.staleness_decay": decay,
        "learner.learning_rate_root": root,
        "learner.truncation": truncation,
    }


ARMS: Mapping[str, Mapping[str, object]] = {
    "sync-4096": _arm(1, 4096, None, None, None),
    "sync-1024": _arm(1, 1024, None, None, None),
    "async": _arm(4, 1024, None, None, None),
    "+bound": _arm(4, 1024, 0.9, None, None),
    "+rates": _arm(4, 1024, 0.9, 3.0, None),
    "+truncation": _arm(4, 1024, 0.9, 3.0, 1.0),
    "nitro-sync": {**_arm(1, 1024, None, None, None), **NITRO},
    "nitro+stellaris": {**_arm(4, 1024, 0.9, 3.0, 1.0), **NITRO},
}
COMBINED = ("nitro-sync", "nitro+stellaris")
"""One learner without mechanisms is exactly PPO. sync-4096 is the paper's baseline. sync-1024 is the control that the
paper lacks, with the asynchronous arms' number of steps. Each of the next four adds one mechanism to the previous one.
The last two are sync-1024 and +truncation with Nitro's scaler."""


def arms_of(workload: str) -> list[str]:
    """Returns a workload's arms."""
    return [arm for arm in ARMS if arm not in COMBINED or WORKLOADS[workload].is_combined]


def runs(workload: str, work: Path) -> Iterator[Training]:
    """Yields the runs, seed by seed, so that the arms remain comparable after an interruption."""
    chosen = WORKLOADS[workload]
    settings = {
        **SHARED,
        "environment.id": chosen.environment,
        "stop.max_rounds": chosen.rounds,
        "learner.durations": f"papers/stellaris/{workload}_durations.json",
    }
    for seed in SEEDS:
        for arm in arms_of(workload):
            yield Training(
                FILE,
                arm,
                seed,
                {**settings, **ARMS[arm], "seed": seed},
                work / workload / arm / f"seed-{seed}",
            )


def priced(run: Training, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields each row with its seconds and dollars as on Lambda, by its counts and the recorded durations."""
    experiment = load_experiment(
        ROOT / run.file, [f"{key}={json.dumps(value)}" for key, value in run.settings.items()]
    )
    resolved, learner = experiment.resolved(), experiment.learner
    assert isinstance(learner, VirtualSettings)
    architecture, durations = resolved.actor.architecture, Durations.read(ROOT / learner.durations)
    speed = lambda_speed(learner.function_memory_mib)
    loop_speed = lambda_speed(COORDINATOR_MEMORY_MIB)
    units = units_of(resolved)
    gradient = learner_function_prices(PRICES, learner, architecture=architecture)
    loop = replace(
        pricing_of(experiment),
        gradient_step_s=0.0,
        sample_s=0.0,
        evaluated_step_s=0.0,
        learner_usd_per_s=COORDINATOR_MEMORY_MIB
        / 1024
        * PRICES.functions[architecture].on_demand_usd,
    )
    for row in rows:
        collected = loop.price(RoundRow(**row))
        update_s, gradients_s = durations.update_s(
            experiment.seed,
            row["policy_version"],
            row["gradients"] + row["gradients_lost"],
            samples=resolved.algorithm.minibatch_steps,
            learners=learner.learners,
        )
        products = (row["hessian_products"] or 0) * (row["product_samples"] or 0)
        busy_s = update_s / speed + products * units["product_sample_s"] / loop_speed
        evaluate_s = (row["evaluated_steps"] or 0) * units["evaluated_step_s"] / loop_speed
        busy_s += max(0.0, evaluate_s - collected.round_s)
        gradients_usd = (
            gradient.usd(is_provisioned=False, billed_s=one / speed, traffic_bytes=0)
            for one in gradients_s
        )
        yield {
            **row,
            "priced_s": collected.round_s + busy_s,
            "priced_usd": collected.usd + busy_s * loop.learner_usd_per_s + sum(gradients_usd),
        }


def kept(run: Training) -> dict[str, Any]:
    """Returns the data to keep of a finished run."""
    summary, rows, commits = records(run)
    return {
        "arm": run.arm,
        "seed": run.seed,
        "commits": sorted(set(commits)),
        **{
            name: summary[name]
            for name in ("stop_reason", "rounds", "env_steps_total", "measured_session_s")
        },
        "rows": columns(priced(run, rows), SERIES),
    }


def study_of(workload: str) -> dict[str, Any]:
    """Returns the settings that decide a workload's runs."""
    return {
        "workload": vars(WORKLOADS[workload]),
        "shared": SHARED,
        "arms": {arm: ARMS[arm] for arm in arms_of(workload)},
    }


def main() -> None:
    """Trains missing runs, and writes the results."""
    asked = asked_for(__doc__, WORKLOADS)
    every = list(runs(asked.workload, asked.work))

    def note() -> None:
        found = [kept(run) for run in every if is_finished(run.directory)]
        results = {
            **origin(f"python -m papers.stellaris.arms {asked.workload} --work WORK"),
            "time": f"virtual, from papers/stellaris/{asked.workload}_durations.json",
            **study_of(asked.workload),
            "runs": found,
        }
        write_atomically(RESULTS / f"{asked.workload}.json", json.dumps(results).encode())
        print(f"{len(found)} of {len(every)} runs are finished", flush=True)

    train_all(every, jobs=asked.jobs, note=note)
    note()


if __name__ == "__main__":
    main()
