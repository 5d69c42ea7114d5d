"""Compares trainings with actors chosen by a score, by the same score in permuted order, and by none, at equal dollars.

    python -m papers.nitro.boosting.dollars experiments/hopper.yaml --seed 0 --out WORK [--minutes M]

The arms are trainings from the same start with the same random streams:

- ``convexity``: Nitro's scaler on R; low values boost (paper: Nitro §5.3).
- ``convexity-permuted``: the normalized scores (S_k/d^k) of that training in another order, with the same decay d^k:
  the one of many random orders whose number of actors is closest.
- ``convexity-even``: the same number of actors in all, spread evenly over the rounds.
- ``convexity-rounds``: the same number of actors in all, I_min in each of more rounds, so nothing is boosted.

All start nearly the same number of actors, and every actor costs the same. Each finished arm is a line of
``WORK/NAME-dollars-SEED.jsonl``. A restart trains only the missing arms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from papers.nitro.boosting import signals
from papers.nitro.boosting.measure import append, begin, claim, make_parser, whole_lines
from papers.nitro.boosting.trainer import Trainer
from runtime.config.schema import Experiment
from runtime.learner.actor_critic import ActorCritic
from runtime.ports.learning import Update
from runtime.ports.scaling import RoundView
from runtime.scaler.counts import clipped
from runtime.scaler.nitro import NitroScaler, NitroSettings

EPISODES = 30
EVALUATE_EVERY = 10
PERMUTATIONS = 200

SIGNAL = "convexity"


def measured(learner: ActorCritic, updates: Sequence[Update]) -> float | None:
    """Returns R of a policy on the samples of its update. Low values boost."""
    return signals.curvature(learner, updates[-1].samples, "log_prob", subset_size=1024)["ratio"]


def train(
    experiment: Experiment,
    decide: Callable[[Trainer, list[Update], int], int],
    rounds: int,
    deadline_s: float,
) -> dict[str, Any]:
    """Trains once. Returns the actors used, and the policies' returns.

    Args:
        decide: Returns a round's number of actors, given the training, its updates so far and the round's number.
    """
    trainer, updates, counts, evaluated = Trainer(experiment), [], [], {}
    for round_index in range(1, rounds + 1):
        if time.monotonic() > deadline_s:
            raise TimeoutError("no time is left; start again to continue")
        counts.append(decide(trainer, updates, round_index))
        updates.append(trainer.update(trainer.roll_out(round_index, counts[-1])))
        if round_index % EVALUATE_EVERY == 0 or round_index == rounds:
            evaluated[str(round_index)] = trainer.returns(EPISODES, seed=2_000_000).tolist()
    return {"actors": counts, "returns": evaluated}


def arms(
    experiment: Experiment, rounds: int, known: dict[str, dict[str, Any]], deadline_s: float
) -> Iterator[dict[str, Any]]:
    """Yields the lines of missing arms."""
    settings = experiment.scaler
    if SIGNAL not in known:
        scores: list[float] = []
        scaler = NitroScaler(
            NitroSettings(
                actors_min=settings.actors_min,
                actors_max=settings.actors_max,
                window_rounds=settings.window_rounds,
                decay_factor=settings.decay_factor,
            )
        )

        def by_signal(trainer: Trainer, updates: list[Update], round_index: int) -> int:
            value = measured(trainer.learner, updates) if updates else None
            decision = scaler.decide(RoundView(round_index, signals={"convexity_ratio": value}))
            scores.append(decision.boosting_score / decision.decay_weight)
            return decision.actor_count

        known[SIGNAL] = {
            "arm": SIGNAL,
            "scores": scores,
            **train(experiment, by_signal, rounds, deadline_s),
        }
        yield known[SIGNAL]
    total, generator = sum(known[SIGNAL]["actors"]), np.random.default_rng(experiment.seed)
    permuted = [
        [
            clipped(
                settings.actors_max * (score * settings.decay_factor ** (index + 1)),
                settings.actors_min,
                settings.actors_max,
            )
            for index, score in enumerate(generator.permutation(known[SIGNAL]["scores"]))
        ]
        for _ in range(PERMUTATIONS)
    ]
    schedules = {
        f"{SIGNAL}-permuted": min(permuted, key=lambda counts: abs(sum(counts) - total)),
        f"{SIGNAL}-even": [
            total * (index + 1) // rounds - total * index // rounds for index in range(rounds)
        ],
        f"{SIGNAL}-rounds": [settings.actors_min] * round(total / settings.actors_min),
    }
    for arm, schedule in schedules.items():
        if arm not in known:
            known[arm] = {
                "arm": arm,
                **train(
                    experiment,
                    lambda trainer, updates, round_index, schedule=schedule: schedule[
                        round_index - 1
                    ],
                    len(schedule),
                    deadline_s,
                ),
            }
            yield known[arm]


def main() -> None:
    options = make_parser().parse_args()
    experiment, until_s = begin(options)
    path = options.out / f"{experiment.environment.id}-dollars-{options.seed}.jsonl"
    file = claim(path, f"{experiment.identity} {options.rounds}")
    known = {line["arm"]: line for line in whole_lines(path)}
    try:
        for line in arms(experiment, options.rounds, known, until_s):
            append(file, line)
    except TimeoutError as end:
        print(f"{path.name}: {end}")


if __name__ == "__main__":
    main()
