"""What the claims on boostable rounds are measured by, on the results of `papers.nitro.boostable`.

Each measure is positive in its claim's direction. papers/protocol.yaml defines it in full.

Paper: Nitro §2.2, §2.3, §5.2, §5.3; Figs. 2, 3, 4, 7, 8, 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from papers.estimates import over_seeds
from papers.runs import Estimates, Results
from runtime.scaler.interfaces import RoundView
from runtime.scaler.nitro import NitroScaler, NitroSettings

Record = Mapping[str, Any]
"""What was measured with one seed."""
HIGH = 0.9
"""Quantile of the compared surfaces' points above which a return is high. Not in the paper."""


def by_seed(measure: Callable[..., float]) -> Callable[..., Estimates]:
    """Makes a measure of one that takes a record and the claim's own arguments."""

    def estimates(
        results: Results, *, studies: Mapping[str, str], arm: str, **arguments: Any
    ) -> Estimates:
        return {
            label: over_seeds(
                measure(record, **arguments) for record in results.runs(study).get(arm, {}).values()
            )
            for label, study in studies.items()
        }

    return estimates


def best_round(record: Record) -> float:
    """Returns how much higher boosting the best round ends than boosting its neighbours, in other replays."""
    final = np.array([row["final"] for row in record["rounds"]])
    half = final.shape[1] // 2
    halves = final[:, :half].mean(1), final[:, half:].mean(1)
    found = []
    for chosen, confirmed in (halves, halves[::-1]):
        best = 1 + int(chosen[1:-1].argmax())
        found.append(confirmed[best] - (confirmed[best - 1] + confirmed[best + 1]) / 2.0)
    return float(np.mean(found))


def surfaces(record: Record, *, more: str, fewer: str) -> float:
    """Returns how much larger the share of high returns is on one surface than on another."""
    pair = np.array([record["surfaces"][name] for name in (more, fewer)])
    shares = (pair > np.quantile(pair, HIGH)).mean(1)
    return float(shares[0] - shares[1])


def lowest_less_highest(record: Record, *, over: str = "") -> float:
    """Returns how much more boosting gains at the lowest R than at the highest.

    Args:
        over: Number of actors whose return is the gain's base; empty = the return before the update.
    """
    ratios, gains = _ratios_and_gains(record, over)
    return float(gains[ratios.argmin()] - gains[ratios.argmax()])


def rank_correlation(record: Record) -> float:
    """Returns Spearman's correlation of R and gain, with its sign changed."""
    ratios, gains = (values.argsort().argsort() for values in _ratios_and_gains(record, ""))
    return -float(np.corrcoef(ratios, gains)[0, 1])


def _ratios_and_gains(record: Record, over: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns R and the mean gain of the most actors, by round that has an R."""
    rows = [row for row in record["rounds"] if row["ratio"] is not None]
    gains = [
        np.mean(_most(row["after"])) - np.mean(row["after"].get(over, row["before"]))
        for row in rows
    ]
    return np.array([row["ratio"] for row in rows]), np.array(gains)


def _most(by_actors: Mapping[str, Any]) -> Any:
    return by_actors[max(by_actors, key=int)]


def ratio_rise(record: Record, *, over: str = "") -> float:
    """Returns the share by which R is higher after boosting, by geometric means over rounds and replays.

    Args:
        over: Number of actors after whose update R is the base; empty = R before the update.
    """
    logs = [
        np.nanmean(np.log(np.array(_most(row["ratios_after"]), float)))
        - np.nanmean(np.log(np.array(row["ratios_after"].get(over, [row["ratio"]]), float)))
        for row in record["rounds"]
        if row["ratio"] is not None
    ]
    return float(np.expm1(np.nanmean(logs)))


def first_less_last(record: Record) -> float:
    """Returns how much more boosting gains in the first chosen round than in the last."""
    gains = [
        np.mean(list(row["after"].values())) - np.mean(row["before"]) for row in record["rounds"]
    ]
    return float(gains[0] - gains[-1])


def scores_by_label(results: Results, *, studies: Mapping[str, str], arm: str) -> Estimates:
    """Returns how much farther apart the scores of a seed and the next are with different labels than with the same.

    The mean over seeds estimates half of the labels' energy distance, which is 0 only if scores do not depend on them.
    """
    labels = [_scores(results, study, arm) for study in studies.values()]
    seeds = min(map(len, labels))
    labels = [scores[:seeds] for scores in labels]
    different = [_next(_apart(*two)) for two in permutations(labels, 2)]
    same = [_next(_apart(one, one)) for one in labels]
    return {"": over_seeds(np.mean(different, axis=0) - np.mean(same, axis=0))}


def scores_by_run(results: Results, *, studies: Mapping[str, str], arm: str) -> Estimates:
    """Returns how much farther apart the scores of a seed and the next are than those of one seed on two replays."""
    found = {}
    for label, study in studies.items():
        scores = _scores(results, study, arm)
        replays = scores.shape[1]
        apart = _apart(scores, scores)
        own = apart.diagonal() * replays / (replays - 1)
        found[label] = over_seeds(_next(apart) - (own + np.roll(own, -1)) / 2.0)
    return found


def _scores(results: Results, study: str, arm: str) -> np.ndarray:
    """Returns scores ``[seeds, replays, rounds]``: of each policy's R on the samples of each replay."""
    runs = results.runs(study).get(arm, {})
    found = []
    for seed in sorted(runs, key=int):
        by_replay = zip(*(row["ratios_anew"] for row in runs[seed]["rounds"]), strict=True)
        found.append([_scored(ratios) for ratios in by_replay])
    return np.array(found) if found else np.empty((0, 2, 1))


def _scored(ratios: Iterable[float | None]) -> list[float]:
    scaler = NitroScaler(NitroSettings())
    views = (RoundView(k, signals={"convexity_ratio": ratio}) for k, ratio in enumerate(ratios, 1))
    return [scaler.decide(view).boosting_score or 0.0 for view in views]


def _apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the mean difference of scores in the same round, over all pairs of replays, ``[seeds, seeds]``."""
    differences: np.ndarray = np.abs(first[:, None, :, None] - second[None, :, None]).mean(
        (2, 3, 4)
    )
    return differences


def _next(apart: np.ndarray) -> np.ndarray:
    """Returns each seed's distance to the next. Means over all others would depend on each other by chance."""
    return np.roll(apart, -1, axis=1).diagonal()


KINDS: Mapping[str, Callable[..., Estimates]] = {
    "best_round": by_seed(best_round),
    "surfaces": by_seed(surfaces),
    "lowest_less_highest": by_seed(lowest_less_highest),
    "rank_correlation": by_seed(rank_correlation),
    "ratio_rise": by_seed(ratio_rise),
    "first_less_last": by_seed(first_less_last),
    "scores_by_label": scores_by_label,
    "scores_by_run": scores_by_run,
}
"""By the name in ``measure.kind``."""
