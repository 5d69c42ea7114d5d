"""What MinionsRL's claims are measured by. Each measure is positive in its claim's direction.

A run's seconds and dollars are those of `papers.bills`, until it reaches its target or ``stop.max_steps``. MinionsRL
runs on functions. A rival may be an arm of another study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from papers.bills import Bill
from papers.estimates import over_seeds, percentage, relative
from papers.runs import Estimates, Results, Run, evaluated, last_rounds
from runtime.scaler.minions_settings import scheduler_path
from runtime.scaler.saved_scheduler import load_scheduler


class Race:
    """Runs of MinionsRL, and of a rival with the same seeds.

    Attributes:
        pairs: The runs of each seed.
    """

    def __init__(
        self,
        results: Results,
        *,
        study: str,
        ours: str,
        rival: str,
        rival_study: str = "",
        rival_on: str = "minionsrl",
    ) -> None:
        """Reads the runs.

        Args:
            study: MinionsRL's study.
            ours, rival: Arms.
            rival_study: The rival's study, if it is another.
            rival_on: What the rival's actors run on; see `papers.bills.Bill`.
        """
        self._studies = results.studies[study], results.studies[rival_study or study]
        self._rival_on = rival_on
        self.pairs = results.pairs(study, ours, rival, rival_study)

    def totals(self, of: str, learner: str) -> list[list[np.ndarray]]:
        """Returns the sums after each round of both runs of each pair.

        Args:
            of: ``seconds`` or ``dollars``.
            learner: ``gpu`` or ``cpu``.
        """
        ours, theirs = self._studies
        bills = (
            Bill.of(ours, learner, "minionsrl"),
            Bill.of(theirs, learner, self._rival_on),
        )
        return [
            [
                np.cumsum(bill.round_s(run) if of == "seconds" else bill.usd(run))
                for bill, run in zip(bills, pair, strict=True)
            ]
            for pair in self.pairs
        ]

    def reached(self) -> str:
        """Returns how many runs of each arm reached their target."""
        targets = [study["settings"]["stop.target_return"] for study in self._studies]
        counts = [
            sum(evaluated(pair[side])[-1] >= targets[side] for pair in self.pairs)
            for side in (0, 1)
        ]
        return f"{counts[0]} and {counts[1]} of {len(self.pairs)} reached the target"


def to_target(results: Results, *, of: str, **race: Any) -> Estimates:
    """Returns the share of a rival's seconds or dollars to the target that MinionsRL saves.

    Args:
        of: See `Race.totals`.
        race: See `Race`.
    """
    runs = Race(results, **race)
    with_gpu, with_cpu = (
        _saved([(ours[-1], theirs[-1]) for ours, theirs in runs.totals(of, learner)])
        for learner in ("gpu", "cpu")
    )
    with_gpu["note"] = f"{percentage(with_cpu)} with a CPU as learner; {runs.reached()}"
    return {"Hopper": with_gpu}


def to_target_with_training(results: Results, **race: Any) -> Estimates:
    """Returns the share of a rival's dollars that one training saves if the scheduler's training counts too.

    A step of the scheduler's training costs as much as one of ours.
    """
    runs = Race(results, **race)
    if not runs.pairs:
        return {"Hopper": over_seeds([])}
    arm = results.studies[race["study"]]["arms"][race["ours"]]
    history = load_scheduler(scheduler_path(arm["scaler.scheduler"])).history
    totals = [(ours[-1], theirs[-1]) for ours, theirs in runs.totals("dollars", "gpu")]
    steps = [sum(run["env_steps"]) for run, _ in runs.pairs]
    once_usd = sum(entry["env_steps"] for entry in history) / sum(steps)
    once_usd *= sum(ours for ours, _ in totals)
    saved_usd = float(np.mean([theirs - ours for ours, theirs in totals]))
    found = _saved([(ours + once_usd, theirs) for ours, theirs in totals])
    found["note"] = (
        f"the training pays after {once_usd / saved_usd:,.0f} trainings"
        if saved_usd > 0
        else "the training never pays"
    )
    return {"Hopper": found}


def ahead(
    results: Results, *, of: str, rivals: Mapping[str, Mapping[str, str]], **race: Any
) -> Estimates:
    """Returns by how much MinionsRL's evaluation returns more, when the run of a pair that ends first has ended.

    Args:
        of: What both have taken then; see `Race.totals`.
        rivals: By label: the rest of `Race`'s arguments.
        race: See `Race`.
    """
    found = {}
    for label, rival in rivals.items():
        runs = Race(results, **race, **rival)
        scores = []
        for pair, totals in zip(runs.pairs, runs.totals(of, "gpu"), strict=True):
            ends = last_rounds(totals)
            scores.append([evaluated(run)[end] for run, end in zip(pair, ends, strict=True)])
        found[label] = relative(scores)
    return found


def phases(
    results: Results, *, study: str, arm: str, more: Sequence[float], fewer: Sequence[float]
) -> Estimates:
    """Returns how many actors more the mean round of one part of a run has than of another.

    Args:
        more, fewer: The parts, each from and to a share of the run's rounds.
    """
    runs = results.runs(study).get(arm, {}).values()
    gained = (_mean_actors(run, *more) - _mean_actors(run, *fewer) for run in runs)
    return {"Hopper": over_seeds(gained)}


def different(results: Results, *, study: str, arms: Sequence[str]) -> Estimates:
    """Returns by how much the last evaluations of each two arms differ, whichever returns more."""
    found = {}
    for pair in combinations(arms, 2):
        scores = [[evaluated(run)[-1] for run in runs] for runs in results.pairs(study, *pair)]
        higher, lower = pair
        if sum(ours - theirs for ours, theirs in scores) < 0.0:
            higher, lower = lower, higher
            scores = [score[::-1] for score in scores]
        found[f"{higher} over {lower}"] = relative(scores)
    return found


def _saved(totals: Sequence[tuple[float, float]]) -> dict[str, Any]:
    base = float(np.mean([theirs for _, theirs in totals])) if totals else 1.0
    return over_seeds((theirs - ours) / base for ours, theirs in totals)


def _mean_actors(run: Run, begins: float, ends: float) -> float:
    counts = run["actor_count"]
    first = round(begins * len(counts))
    return float(np.mean(counts[first : max(round(ends * len(counts)), first + 1)]))


KINDS: Mapping[str, Callable[..., Estimates]] = {
    "to_target": to_target,
    "to_target_with_training": to_target_with_training,
    "ahead": ahead,
    "phases": phases,
    "different": different,
}
