"""Six arms of Stellaris in virtual time: what asynchrony, bound, rates and truncation each change; two more on Hopper.

    python -m papers.stellaris.arms hopper --work WORK [--jobs 2] [--minutes 60]

Each arm is experiments/hopper-stellaris.yaml with other settings of `learner.stellaris` and of the minibatch, in one
of three environments, with gradients that arrive when the durations in WORKLOAD_durations.json are over. Goes on where
it ended, also in the middle of a training, and gives the same numbers then. Results do not depend on how busy the
machine is. A round takes about 1.3 CPU seconds on Hopper, 1.8 on Walker2d and 3.2 on Humanoid, whose runs are shorter
therefore. All three take two to three hours of one core. Writes papers/stellaris/results/WORKLOAD.json after each
finished run, of which `papers.stellaris.page` makes a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.provenance import origin
from papers.estimates import SEEDS
from papers.runs import Run
from papers.trainings import asked_for, columns, is_finished, records, train_all, write_whole

RESULTS = Path(__file__).parent / "results"
FILE = "experiments/hopper-stellaris.yaml"
SERIES = ("actor_count", "env_steps_total", "round_cost_usd", "learner_cost_usd", "actors_cost_usd",
          "infrastructure_cost_usd", "modelled_round_s", "modelled_learn_s", "modelled_evaluate_s",
          "evaluation_return_mean", "evaluation_round", "episode_return_mean", "episodes_finished", "gradients",
          "gradients_lost", "aggregations", "gradient_staleness_mean", "staleness_bound", "truncated_fraction", "kl")


@dataclass(frozen=True)
class Workload:
    """An environment.

    Attributes:
        rounds: Of 4,096 steps; of a run.
        target_return: Of an evaluation; chosen before any two arms had been compared in it.
        is_combined: Whether Nitro's scaler is tried in it, too.
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
    "learner.kind": "stellaris", "learner.stellaris.place": "virtual", "learner.threads": 1, "fleet.processes": 1,
    "learner.update_timeout_s": 3600, "evaluation.every_rounds": 5}
"""Of all arms. One thread and one actor process give the same runs as more of them. There is no target in the file:
with one, evaluations come when it is near, and not every five rounds."""
NITRO = {"scaler.kind": "nitro", "scaler.actors_min": 8, "scaler.actors_max": 32}
"""The scaler of the combined arms, instead of 16 actors in each round; its decay is the paper's, for 50 rounds."""


def _arm(learners: int, minibatch: int, decay: float | None, root: float | None, truncation: float | None
         ) -> Mapping[str, object]:
    return {"algorithm.ppo.minibatch_steps": minibatch, "learner.stellaris.learners": learners,
            "learner.stellaris.staleness_decay": decay, "learner.stellaris.learning_rate_root": root,
            "learner.stellaris.truncation": truncation}


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
"""One learner without mechanisms is PPO, to the bit: sync-4096 is the paper's baseline, and sync-1024 the control that
it lacks, with as many steps as the asynchronous arms make. Each of the next four adds one mechanism to the one before.
The last two are sync-1024 and +truncation with Nitro's scaler."""


def arms_of(workload: str) -> list[str]:
    """Returns the arms that are tried in a workload."""
    return [arm for arm in ARMS if arm not in COMBINED or WORKLOADS[workload].is_combined]


def runs(workload: str, work: Path) -> Iterator[Run]:
    """Yields the runs, seed by seed, so that the arms stay comparable whenever somebody stops."""
    chosen = WORKLOADS[workload]
    settings = {**SHARED, "environment.id": chosen.environment, "stop.max_rounds": chosen.rounds,
                "learner.stellaris.durations": f"papers/stellaris/{workload}_durations.json"}
    for seed in SEEDS:
        for arm in arms_of(workload):
            yield Run(FILE, arm, arm, seed, {**settings, **ARMS[arm], "seed": seed},
                      work / workload / arm / f"seed-{seed}")


def kept(run: Run) -> dict[str, Any]:
    """Returns what is kept of a finished run."""
    summary, rows, commits = records(run)
    return {"arm": run.rule, "seed": run.seed, "commits": sorted(set(commits)),
            **{name: summary[name] for name in ("stop_reason", "rounds", "env_steps_total", "measured_session_s")},
            "rows": columns(rows, SERIES)}


def study_of(workload: str) -> dict[str, Any]:
    """Returns what decides about its runs."""
    return {"workload": vars(WORKLOADS[workload]), "shared": SHARED,
            "arms": {arm: ARMS[arm] for arm in arms_of(workload)}}


def main() -> None:
    """Trains what is missing, and writes what is there."""
    asked = asked_for(__doc__, WORKLOADS)
    every = list(runs(asked.workload, asked.work))

    def note() -> None:
        found = [kept(run) for run in every if is_finished(run.directory)]
        write_whole(RESULTS / f"{asked.workload}.json", {
            **origin(f"python -m papers.stellaris.arms {asked.workload} --work WORK"),
            "time": f"virtual, from papers/stellaris/{asked.workload}_durations.json",
            **study_of(asked.workload), "runs": found})
        print(f"{len(found)} of {len(every)} runs are finished", flush=True)

    train_all(every, jobs=asked.jobs, until_s=asked.until_s, note=note)
    note()


if __name__ == "__main__":
    main()
