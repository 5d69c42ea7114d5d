"""Nitro Fig. 16: final return and cost by decay factor and window, and an actor's time and cost by memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, ORANGE, dots, panels
from papers.estimates import differences, excludes, over_seeds, status
from papers.nitro.figures import modelled
from papers.nitro.figures.replays import SETTINGS
from papers.nitro.figures.trainings import (
    DECAY_FACTORS,
    HOPPER,
    NITRO,
    WINDOWS,
    cents,
    final_return,
    trained,
)
from runtime.cost.prices import PRICES
from runtime.cost.rates import lambda_speed

FACTORS, LENGTHS = sorted((*DECAY_FACTORS, 0.96)), sorted((*WINDOWS, 6))
MEMORIES_MIB = (256, 512, 1024, 1769, 2048, 3008)


def measure(work: Path) -> dict[str, Any]:
    arms = [NITRO, *(f"d = {one}" for one in DECAY_FACTORS), *(f"n = {one}" for one in WINDOWS)]
    return {"runs": trained(HOPPER, arms, work), "memory": memory()}


def memory() -> dict[str, dict[str, float]]:
    """Returns the modelled seconds and dollars of one actor by its memory."""
    fitted = modelled.fitted(SETTINGS["paper"])
    seconds = modelled.times(fitted, "p3.2xlarge").expected_s()["actor_s"]
    usd_per_gib_s = PRICES.functions[fitted.actor.architecture].on_demand_usd
    now = lambda_speed(fitted.actor.memory_mib)
    found = {}
    for mib in MEMORIES_MIB:
        actor_s = seconds * now / lambda_speed(mib)
        found[str(mib)] = {"seconds": actor_s, "usd": actor_s * mib / 1024 * usd_per_gib_s}
    return found


def draw(data: dict[str, Any]) -> Any:
    figure, columns = panels(3, (13, 4.2))
    for axes, values, letter, title in (
        (columns[0], FACTORS, "d", "(a) Decay factor"),
        (columns[1], LENGTHS, "n", "(b) Window, in rounds"),
    ):
        places = range(len(values))
        other = axes.twinx()
        for side, score, colour, shift in (
            (axes, final_return, BLUE, -0.1),
            (other, cents, ORANGE, 0.1),
        ):
            dots(
                side,
                [one + shift for one in places],
                [over_seeds([score(run) for run in of(data, letter, value)]) for value in values],
                color=colour,
            )
            side.tick_params(axis="y", colors=colour)
            side.set_ylim(bottom=0)
        axes.set_xticks(places, [str(value) for value in values])
        axes.set_ylabel("final return", color=BLUE)
        other.set_ylabel("modelled cents", color=ORANGE)
        axes.set_title(title)
    axes, known = columns[2], data["memory"]
    other = axes.twinx()
    sizes = list(known)
    axes.plot(
        range(len(sizes)), [1000 * known[size]["seconds"] for size in sizes], "o-", color=BLUE
    )
    other.plot(range(len(sizes)), [1e6 * known[size]["usd"] for size in sizes], "o-", color=ORANGE)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set(title="(c) Memory of an actor, MiB; modelled", ylim=(0, None))
    axes.set_ylabel("milliseconds of an actor", color=BLUE)
    other.set_ylabel("dollars of a million actors", color=ORANGE)
    other.set_ylim(bottom=0)
    return figure


def of(data: dict[str, Any], letter: str, value: float) -> list[dict[str, Any]]:
    """Returns the runs with that value; for the paper's value, Nitro's own runs."""
    runs = data["runs"]
    found: list[dict[str, Any]] = runs.get(f"{letter} = {value}", runs[NITRO])
    return found


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    steps = {}
    for letter, (low, middle, high) in (("d", FACTORS), ("n", LENGTHS)):
        for name, score in (("return", final_return), ("cents", cents)):
            steps[letter, name] = [
                differences(of(data, letter, b), of(data, letter, a), score)
                for a, b in ((low, middle), (middle, high))
            ]
    signs = {key: [excludes(one) for one in of_key] for key, of_key in steps.items()}
    slowness = data["memory"]["1769"]["seconds"] / data["memory"]["1024"]["seconds"]
    claims = {
        "cost grows with d": signs["d", "cents"] == [1, 1],
        "return grows with d up to 0.96": signs["d", "return"][0] == 1,
        "a longer window costs less": -1 in signs["n", "cents"],
        "and returns less": -1 in signs["n", "return"],
        "an actor is no faster beyond 1,024 MB": slowness >= 1.0,
    }
    return {
        "steps": steps,
        "slowness": slowness,
        "claims": claims,
        "kept": [name for name, holds in claims.items() if holds],
        "status": status(claims.values()),
    }
