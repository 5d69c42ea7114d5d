"""Nitro Fig. 16: final return and cost by decay factor and window, and an actor's time and cost by memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot

from benchmarks.figures import modelled, replays
from benchmarks.figures.efficiency import short
from benchmarks.figures.nitro_15 import cents
from benchmarks.figures.trainings import DECAY_FACTORS, HOPPER, NITRO, WINDOWS, final_return, trained
from runtime.cost.prices import PRICES
from runtime.cost.rates import lambda_speed

PAPER = (
    "§8.4, Hopper: (a) return and cost grow with the decay factor from 0.93 to 0.99; the return stops growing at "
    "0.96. (b) A window of more rounds costs less and returns less. (c) Actors get no faster beyond 1,024 MB, while "
    "they cost more.")
METHOD = (
    "experiments/paper/hopper-ppo.yaml with the paper's own value and both ends of its range, five seeds, fifty "
    "rounds. Cents are modelled, of learner and actors. (c) is modelled from units of work measured here and the share "
    "of a vCPU that Lambda documents: a whole one at 1,769 MB.")
FACTORS, LENGTHS = sorted((*DECAY_FACTORS, 0.96)), sorted((*WINDOWS, 6))
MEMORIES_MIB = (256, 512, 1024, 1769, 2048, 3008)


def measure(work: Path) -> dict[str, Any]:
    arms = [NITRO, *(f"d = {one}" for one in DECAY_FACTORS), *(f"n = {one}" for one in WINDOWS)]
    found = {arm: [short(run) for run in runs] for arm, runs in trained([HOPPER], arms, work)[HOPPER].items()}
    return {"runs": found, "memory": memory()}


def memory() -> dict[str, dict[str, float]]:
    """Modelled seconds and dollars of one actor by its memory."""
    fitted = modelled.fitted(replays.SETTINGS["paper"])
    seconds = modelled.times(fitted, "p3.2xlarge").expected_s()["actor_s"]
    architecture = fitted.actor.architecture
    usd_per_gib_s = PRICES.functions[architecture].on_demand_usd
    now = lambda_speed(fitted.actor.memory_mib, architecture)
    found = {}
    for mib in MEMORIES_MIB:
        actor_s = seconds * now / lambda_speed(mib, architecture)
        found[str(mib)] = {"seconds": actor_s, "usd": actor_s * mib / 1024 * usd_per_gib_s}
    return found


def draw(data: dict[str, Any], path: Path) -> None:
    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)
    for axes, values, letter, title in ((panels[0], FACTORS, "d", "(a) Decay factor"),
                                        (panels[1], LENGTHS, "n", "(b) Window, in rounds")):
        places = range(len(values))
        other = axes.twinx()
        for side, score, colour, shift in (
                (axes, final_return, replays.BLUE, -0.1), (other, cents, replays.ORANGE, 0.1)):
            replays.dots(side, [one + shift for one in places],
                         [replays.over_seeds([score(run) for run in of(data, letter, value)]) for value in values],
                         color=colour)
            side.tick_params(axis="y", colors=colour)
            side.set_ylim(bottom=0)
        axes.set_xticks(places, [str(value) for value in values])
        axes.set_ylabel("final return", color=replays.BLUE)
        other.set_ylabel("modelled cents", color=replays.ORANGE)
        axes.set_title(title)
    axes, known = panels[2], data["memory"]
    other = axes.twinx()
    sizes = list(known)
    axes.plot(range(len(sizes)), [1000 * known[size]["seconds"] for size in sizes], "o-", color=replays.BLUE)
    other.plot(range(len(sizes)), [1e6 * known[size]["usd"] for size in sizes], "o-", color=replays.ORANGE)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set(title="(c) Memory of an actor, MiB; modelled", ylim=(0, None))
    axes.set_ylabel("milliseconds of an actor", color=replays.BLUE)
    other.set_ylabel("dollars of a million actors", color=replays.ORANGE)
    other.set_ylim(bottom=0)
    replays.saved(figure, path)


def of(data: dict[str, Any], letter: str, value: float) -> list[dict[str, Any]]:
    """The runs with that value; those with the paper's are Nitro's own."""
    runs = data["runs"]
    found: list[dict[str, Any]] = runs.get(f"{letter} = {value}", runs[NITRO])
    return found


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    ends = {"d": (0.93, 0.96, 0.99), "n": (3, 6, 10)}
    grows = {}
    for letter, values in ends.items():
        low, middle, high = (of(data, letter, value) for value in values)
        for name, score in (("return", final_return), ("cents", cents)):
            for part, (a, b) in {"first": (low, middle), "second": (middle, high)}.items():
                grows[letter, name, part] = replays.over_seeds(
                    [score(two) - score(one) for one, two in zip(a, b, strict=True)])
    claims = {
        "cost grows with d": replays.excludes(grows["d", "cents", "first"]) == 1 == replays.excludes(
            grows["d", "cents", "second"]),
        "return grows with d up to 0.96": replays.excludes(grows["d", "return", "first"]) == 1,
        "a longer window costs less": -1 in {
            replays.excludes(grows["n", "cents", part]) for part in ("first", "second")},
        "and returns less": -1 in {replays.excludes(grows["n", "return", part]) for part in ("first", "second")},
        "an actor is no faster beyond 1,024 MB": data["memory"]["1769"]["seconds"] >= data["memory"]["1024"]["seconds"]}
    kept = [name for name, holds in claims.items() if holds]
    return "reproduced" if len(kept) == len(claims) else "partly" if kept else "not", (
        "; ".join(
            f"From {steps} the return changes by {replays.text(grows[letter, 'return', 'first'], 0)} and "
            f"{replays.text(grows[letter, 'return', 'second'], 0)}, cents by "
            f"{replays.text(grows[letter, 'cents', 'first'], 2)} and "
            f"{replays.text(grows[letter, 'cents', 'second'], 2)}"
            for letter, steps in (("d", "d = 0.93 to 0.96 to 0.99"), ("n", "n = 3 to 6 to 10"))) +
        ". An actor of 1,769 MB takes "
        f"{data['memory']['1769']['seconds'] / data['memory']['1024']['seconds']:.0%} of the time of one of 1,024. "
        f"Of the paper's claims {len(kept)} of {len(claims)} hold" + (f": {'; '.join(kept)}." if kept else "."))
