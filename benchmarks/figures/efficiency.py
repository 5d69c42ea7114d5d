"""What Nitro Figs. 10, 11 and 14 share: an algorithm with Nitro and with 16 actors in every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.figures import replays
from benchmarks.figures.trainings import (
    LAST_ROUNDS,
    NITRO,
    PARTS,
    STATIC,
    cents_of,
    cents_on_instances,
    draw_returns,
    final_return,
    trained,
)

ENVIRONMENTS = {"hopper": "Hopper", "walker2d": "Walker2d"}
"""Of the paper's three MuJoCo environments; twenty trainings of Humanoid take more than an hour."""
MEASURED = {"ppo": ("hopper", "walker2d"), "impact": ("hopper",)}
"""By algorithm; a training of Walker2d with IMPACT takes three minutes of two cores."""
ARMS = {NITRO: "with Nitro", STATIC: "16 actors"}
COLOURS = {NITRO: replays.BLUE, STATIC: replays.ORANGE}
KEPT = ("seed", "rounds", "env_steps_total", "modelled_s", "spent_usd", "learner_cost_usd", "actors_cost_usd",
        "infrastructure_cost_usd")
ROWS = ("actor_count", "modelled_round_s", "episode_return_mean")


def measure(algorithm: str, work: Path) -> dict[str, Any]:
    """Runs of both arms in each environment."""
    found = {name: trained([f"{name}-{algorithm}"], list(ARMS), work)[f"{name}-{algorithm}"]
             for name in MEASURED[algorithm]}
    return {"runs": {name: {arm: [short(run) for run in runs] for arm, runs in arms.items()}
                     for name, arms in found.items()}}


def short(run: dict[str, Any]) -> dict[str, Any]:
    """What a figure needs of a run."""
    return {**{name: run[name] for name in KEPT}, "rows": {name: run["rows"][name] for name in ROWS}}


def gains(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By environment: final returns of both arms, their difference and quotient by seed, and Nitro's share of steps.

    ``sooner`` is the difference at half of the time that 16 actors take for all of their rounds.
    """
    found = {}
    for name, arms in data["runs"].items():
        ours, theirs = ([final_return(run) for run in arms[arm]] for arm in ARMS)
        found[name] = {
            "nitro": replays.over_seeds(ours), "static": replays.over_seeds(theirs),
            "more": replays.over_seeds([a - b for a, b in zip(ours, theirs, strict=True)]),
            "times": replays.over_seeds([a / b for a, b in zip(ours, theirs, strict=True)]),
            "sooner": replays.over_seeds([return_after(a, seconds) - return_after(b, seconds) for a, b in zip(
                arms[NITRO], arms[STATIC], strict=True) for seconds in [b["modelled_s"] / 2]]),
            "times_the_steps": replays.over_seeds([a["env_steps_total"] / b["env_steps_total"] for a, b in zip(
                arms[NITRO], arms[STATIC], strict=True)])}
    return found


def return_after(run: dict[str, Any], seconds: float) -> float:
    """Mean return of the episodes of the last rounds that had ended by then, in modelled seconds."""
    ended = int(np.searchsorted(np.cumsum(run["rows"]["modelled_round_s"]), seconds, side="right"))
    returns = [one for one in run["rows"]["episode_return_mean"][max(0, ended - LAST_ROUNDS):ended] if one is not None]
    return float(np.mean(returns)) if returns else 0.0


def savings(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By environment: the share of the serverful bill that Nitro saves, with and without provisioned concurrency."""
    found = {}
    for name, arms in data["runs"].items():
        serverful = [sum(cents_on_instances(run).values()) for run in arms[STATIC]]
        bills = [cents_of(run) for run in arms[NITRO]]
        found[name] = {
            "all": replays.over_seeds(
                [1 - sum(bill.values()) / one for bill, one in zip(bills, serverful, strict=True)]),
            "without_provisioned": replays.over_seeds(
                [1 - (bill["learner"] + bill["actors"]) / one for bill, one in zip(bills, serverful, strict=True)])}
    return found


def draw(data: dict[str, Any], path: Path) -> None:
    names = list(data["runs"])
    figure, panels = pyplot.subplots(
        2, len(names), figsize=(6 * len(names), 6.4), constrained_layout=True, squeeze=False)
    for column, name in enumerate(names):
        for axes, against in zip(panels[:, column], ("round", "seconds"), strict=True):
            for arm, label in ARMS.items():
                draw_returns(axes, data["runs"][name][arm], color=COLOURS[arm], label=label, against=against)
            axes.set_xlabel("round" if against == "round" else "modelled seconds")
        panels[0, column].set_title(ENVIRONMENTS[name])
    for axes in panels[:, 0]:
        axes.set_ylabel("return of a round's episodes")
    panels[0, 0].legend(frameon=False, loc="upper left")
    figure.suptitle("Mean of the seeds, and their range")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    found = gains(data)
    signs = [replays.excludes(one[claim]) for one in found.values() for claim in ("more", "sooner")]
    status = "reproduced" if set(signs) == {1} else "partly" if 1 in signs else "not"
    finals = "; ".join(
        f"{ENVIRONMENTS[name]} {replays.text(one['nitro'], 0)} and {replays.text(one['static'], 0)}, "
        f"{replays.text(one['times'], 2)} times as much after {replays.text(one['times_the_steps'], 1)} times the steps"
        for name, one in found.items())
    sooner = " and ".join(f"{replays.text(one['sooner'], 0)} on {ENVIRONMENTS[name]}" for name, one in found.items())
    return status, (f"Final returns with Nitro and with 16 actors: {finals}. At half of the modelled seconds that 16 "
                    f"actors take in all, Nitro's return differs from theirs by {sooner}.")


def draw_bills(data: dict[str, dict[str, Any]], path: Path) -> None:
    """Stacked bills of both arms, by algorithm and environment."""
    figure, panels = pyplot.subplots(1, len(data), figsize=(12, 4.4), constrained_layout=True)
    for axes, (algorithm, of_algorithm) in zip(panels, data.items(), strict=True):
        for place, arms in enumerate(of_algorithm["runs"].values()):
            for shift, bills in ((-0.2, [cents_on_instances(run) for run in arms[STATIC]]),
                                 (0.2, [cents_of(run) for run in arms[NITRO]])):
                bottom = 0.0
                for part, colour in zip(PARTS, (replays.GREY, replays.BLUE, "#b9d2ea"), strict=True):
                    value = replays.over_seeds([bill.get(part, 0.0) for bill in bills])["interquartile_mean"]
                    axes.bar(place + shift, value, width=0.36, bottom=bottom, color=colour,
                             label=part if place == 0 and shift > 0 else None)
                    bottom += value
        titles = [ENVIRONMENTS[name] for name in of_algorithm["runs"]]
        axes.set_xticks(range(len(titles)), [f"{title}\n16 actors | Nitro" for title in titles])
        axes.set(title=algorithm, ylabel="modelled cents of a training", xlim=(-0.5, len(ENVIRONMENTS) - 0.5))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(PARTS), frameon=False)
    replays.saved(figure, path)
