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
from papers.estimates import over_seeds, percentage, relative
from papers.minionsrl import measures as minionsrl
from papers.nitro import boostable_measures
from papers.runs import Estimates, Results, Run, last_rounds, returns, rounds_compared
from papers.stellaris import measures as stellaris

ACTORS_ON = ("provisioned", "c5.4xlarge")
"""What Nitro's actors run on in §8.1, and the others'; see `Bill`."""


def gain(
    results: Results, *, studies: Mapping[str, str], ours: str, theirs: str, at: str
) -> Estimates:
    """Returns by how much an arm's final return is higher.

    Args:
        studies: By label.
        at: ``rounds``: after the whole runs. ``steps`` or ``seconds``: after the last whole round within the smaller
            number of a pair, with a GPU as learner, warm functions for ours, and a server for theirs.
    """
    found = {}
    for label, study in studies.items():
        timed_on = ACTORS_ON if at == "seconds" else ()
        bills = [Bill.of(results.studies[study], "gpu", on) for on in timed_on]
        scores, others = [], []
        for pair in results.pairs(study, ours, theirs):
            if at == "rounds":
                scores.append([returns(run)[-1] for run in pair])
                others.append([run["evaluation_return_mean"][-1] for run in pair])
            else:
                taken = [run["env_steps"] for run in pair]
                if bills:
                    taken = [bill.round_s(run) for bill, run in zip(bills, pair, strict=True)]
                ends = last_rounds([np.cumsum(column) for column in taken])
                scores.append([returns(run)[end] for run, end in zip(pair, ends, strict=True)])
                columns = [np.asarray(run["episode_return_mean"], float) for run in pair]
                others.append([column[end] for column, end in zip(columns, ends, strict=True)])
        beside = "20 new episodes" if at == "rounds" else "last round alone"
        found[label] = {**relative(scores), "note": f"{beside} {percentage(relative(others))}"}
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
        bills = [Bill.of(results.studies[study], learner, on) for on in (ours_on, theirs_on)]
        shares: dict[str, list[float]] = {at: [], "rounds": []}
        for pair in results.pairs(study, ours, theirs):
            our_usd, their_usd = (bill.usd(run) for bill, run in zip(bills, pair, strict=True))
            for until, values in shares.items():
                ours_end, theirs_end = rounds_compared(pair, until)
                values.append(1.0 - our_usd[:ours_end].sum() / their_usd[:theirs_end].sum())
        found[label] = over_seeds(shares[at])
        if at == "return":
            found[label]["note"] = f"all rounds {percentage(over_seeds(shares['rounds']))}"
    return found


def overhead(
    results: Results, *, studies: Mapping[str, str], arm: str, learner: str, actors_least: int
) -> Estimates:
    """Returns the detector's share of the seconds of an arm's rounds with this number of actors, or with more."""
    found = {}
    for label, study in studies.items():
        bill = Bill.of(results.studies[study], learner, "provisioned")
        runs = results.runs(study).get(arm, {}).values()
        large = over_seeds(_detector_share(bill, run, actors_least) for run in runs)
        whole = over_seeds(_detector_share(bill, run, 0) for run in runs)
        found[label] = {**large, "note": f"all rounds {percentage(whole)}"}
    return found


def _detector_share(bill: Bill, run: Run, actors_least: int) -> float:
    is_counted = np.array(run["actor_count"]) >= actors_least
    return float(bill.detection_s(run)[is_counted].sum() / bill.round_s(run)[is_counted].sum())


def beside_rllib(results: Results, *, study: str, rllib: str, setting: str) -> Estimates:
    """Returns by how much the return of a setting's last round differs from RLlib's."""
    theirs: Mapping[str, Any] = results.runs(rllib)
    ours = results.runs(study).get(setting, {})
    both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    trained = [[run["episode_return_mean"][-1] for run in pair] for pair in both]
    # RLlib's program has one number, not a column.
    new = [(a["evaluation_return_mean"][-1], b["evaluation_return_mean"]) for a, b in both]
    return {setting: {**relative(trained), "note": f"20 new episodes {percentage(relative(new))}"}}


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
