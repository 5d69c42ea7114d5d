"""What the claims of papers/protocol.yaml are measured by.

A measure takes the results and its arguments, and returns estimates over seeds (`papers.estimates`) by label, such as
an environment. It is positive in the claim's direction. An estimate may have a ``note`` for the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.provenance import ROOT
from papers.bills import Bill
from papers.estimates import over_seeds, percent, relative, text
from papers.minionsrl import measures as minionsrl
from papers.nitro import boostable_measures
from papers.runs import Estimates, Results, last_rounds, returns, rounds_compared
from papers.stellaris import measures as stellaris


def gain(
    results: Results, *, studies: Mapping[str, str], ours: str, theirs: str, at: str
) -> Estimates:
    """Returns by how much an arm's final return is higher.

    Args:
        studies: By label.
        at: ``rounds``: after the whole runs. ``steps``: after the last whole round within the smaller number of
            environment steps of a pair.
    """
    found = {}
    for label, study in studies.items():
        scores, others = [], []
        for pair in results.pairs(study, ours, theirs):
            if at == "rounds":
                scores.append([returns(run)[-1] for run in pair])
                others.append([run["evaluation_return_mean"][-1] for run in pair])
            else:
                ends = last_rounds([np.cumsum(run["env_steps"]) for run in pair])
                scores.append([returns(run)[end] for run, end in zip(pair, ends, strict=True)])
                columns = [np.asarray(run["episode_return_mean"], float) for run in pair]
                others.append([column[end] for column, end in zip(columns, ends, strict=True)])
        other = text(percent(relative(others)), 0, " %", sign=True)
        note = f"{'20 new episodes' if at == 'rounds' else 'last round alone'} {other}"
        found[label] = {**relative(scores), "note": note}
    return found


def saving(
    results: Results,
    *,
    studies: Mapping[str, str],
    ours: str,
    theirs: str,
    learner: str,
    ours_on: str,
    theirs_on: str,
    at: str = "return",
) -> Estimates:
    """Returns the share of the other arm's dollars that an arm saves.

    Args:
        studies: By label.
        learner: ``gpu`` or ``cpu``; see `Bill`.
        ours_on, theirs_on: What actors of each arm run on; see `Bill`.
        at: See `rounds_compared`.
    """
    found = {}
    for label, study in studies.items():
        ours_bill, theirs_bill = (
            Bill.of(results.studies[study], learner, on) for on in (ours_on, theirs_on)
        )
        shares = []
        for pair in results.pairs(study, ours, theirs):
            our_run, their_run = pair
            our_rounds, their_rounds = rounds_compared(pair, at)
            our_usd = ours_bill.usd(our_run)[:our_rounds].sum()
            shares.append(1.0 - our_usd / theirs_bill.usd(their_run)[:their_rounds].sum())
        found[label] = over_seeds(shares)
    return found


def overhead(results: Results, *, studies: Mapping[str, str], arm: str, learner: str) -> Estimates:
    """Returns the share of an arm's seconds that the detector takes."""
    found = {}
    for label, study in studies.items():
        bill = Bill.of(results.studies[study], learner, "functions")
        runs = results.runs(study).get(arm, {}).values()
        seconds = [(bill.detection_s(run).mean(), bill.round_s(run).mean()) for run in runs]
        found[label] = over_seeds(detection_s / round_s for detection_s, round_s in seconds)
        if seconds:
            found[label]["note"] = f"rounds of {np.mean(seconds, axis=0)[1]:.1f} s"
    return found


def beside_rllib(results: Results, *, study: str, rllib: str, arms: Sequence[str]) -> Estimates:
    """Returns by how much the return of each arm's last round differs from RLlib's."""
    theirs: Mapping[str, Any] = results.runs(rllib)
    found = {}
    for arm in arms:
        ours = results.runs(study).get(arm, {})
        both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        trained = [[run["episode_return_mean"][-1] for run in pair] for pair in both]
        # RLlib's program has one number, not a column.
        new = [(a["evaluation_return_mean"][-1], b["evaluation_return_mean"]) for a, b in both]
        found[arm] = {**relative(trained), "note": _new_episodes(relative(new))}
    return found


def growth(results: Results, *, file: str, delay_s: float, actors: Sequence[int]) -> Estimates:
    """Returns how much longer a round takes with the second number of actors than with the first.

    Args:
        file: Under benchmarks/results; benchmarks/fan_out.py writes it.
        delay_s: How long each actor takes.
    """
    rounds = json.loads((ROOT / "benchmarks" / "results" / file).read_bytes())["rounds"]
    seconds = {one["actors"]: one["round_s"] for one in rounds if one["delay_s"] == delay_s}
    few, many = (seconds[count] for count in actors)
    return {f"{delay_s:g} s": over_seeds(b / a - 1.0 for a, b in zip(few, many, strict=True))}


def _new_episodes(estimate: Mapping[str, Any]) -> str:
    return f"20 new episodes {text(percent(estimate), 0, ' %', sign=True)}"


KINDS: Mapping[str, Callable[..., Estimates]] = {
    "gain": gain,
    "saving": saving,
    "overhead": overhead,
    "beside_rllib": beside_rllib,
    "growth": growth,
    **boostable_measures.KINDS,
    "stellaris_saving": stellaris.saving,
    **minionsrl.KINDS,
}
"""By the name in ``measure.kind``."""
