"""Shared code of Nitro Figs. 10, 11 and 14: an algorithm with Nitro and with 16 actors in every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, GREY, ORANGE, panels
from papers.estimates import differences, excludes, over_seeds, status
from papers.nitro.figures import trainings
from papers.nitro.figures.trainings import NITRO, PARTS, STATIC

ENVIRONMENTS = {"hopper": "Hopper", "walker2d": "Walker2d"}
"""Two of the paper's three MuJoCo environments. Twenty trainings of Humanoid would take more than an hour."""
MEASURED = {"ppo": ("hopper", "walker2d"), "impact": ("hopper",)}
"""By algorithm. A training of Walker2d with IMPACT takes three minutes on two cores."""
ARMS = {NITRO: ("with Nitro", BLUE), STATIC: ("16 actors", ORANGE)}


def measure(algorithm: str, work: Path) -> dict[str, Any]:
    """Returns runs of both arms in each environment."""
    return {
        "runs": {
            name: trainings.trained(f"{name}-{algorithm}", ARMS, work)
            for name in MEASURED[algorithm]
        }
    }


def gains(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns, by environment, both arms' final returns, difference and ratio by seed, and Nitro's share of steps."""
    found = {}
    for name, arms in data["runs"].items():
        pairs = list(zip(arms[NITRO], arms[STATIC], strict=True))
        found[ENVIRONMENTS[name]] = {
            **{
                name: over_seeds(map(trainings.final_return, arms[arm]))
                for name, arm in (("nitro", NITRO), ("static", STATIC))
            },
            "more": differences(arms[NITRO], arms[STATIC], trainings.final_return),
            "times": over_seeds(
                trainings.final_return(a) / trainings.final_return(b) for a, b in pairs
            ),
            "times_the_steps": over_seeds(
                a["env_steps_total"] / b["env_steps_total"] for a, b in pairs
            ),
        }
    return found


def savings(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns, by environment, Nitro's saving on the serverful bill, with and without provisioned concurrency."""
    return {
        ENVIRONMENTS[name]: {
            what: over_seeds(
                1 - bill(ours) / sum(trainings.cents_on_instances(theirs).values())
                for ours, theirs in zip(arms[NITRO], arms[STATIC], strict=True)
            )
            for what, bill in (
                ("all", trainings.all_cents),
                ("without_provisioned", trainings.cents),
            )
        }
        for name, arms in data["runs"].items()
    }


def draw(data: dict[str, Any]) -> Any:
    names = list(data["runs"])
    figure, rows = panels(len(names), (6 * len(names), 6.4), 2, squeeze=False)
    for column, name in enumerate(names):
        for axes, against in zip(rows[:, column], ("round", "seconds"), strict=True):
            for arm, (label, colour) in ARMS.items():
                trainings.draw_returns(
                    axes, data["runs"][name][arm], color=colour, label=label, against=against
                )
            axes.set_xlabel("round" if against == "round" else "modelled seconds")
        rows[0, column].set_title(ENVIRONMENTS[name])
    for axes in rows[:, 0]:
        axes.set_ylabel("return of a round's episodes")
    rows[0, 0].legend(frameon=False, loc="upper left")
    figure.suptitle("Mean of the seeds, and their range")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    """Judges the final returns.

    The claim of faster learning stays open: the detector's and learner's times are those of a CPU, and billed as a GPU.
    """
    found = gains(data)
    return {
        "gains": found,
        "status": status([False, *(excludes(one["more"]) == 1 for one in found.values())]),
    }


def draw_bills(data: dict[str, dict[str, Any]]) -> Any:
    """Draws stacked bills of both arms, by algorithm and environment."""
    figure, columns = panels(
        len(data), (12, 4.4), width_ratios=[len(one["runs"]) for one in data.values()]
    )
    for axes, (algorithm, of_algorithm) in zip(columns, data.items(), strict=True):
        for place, arms in enumerate(of_algorithm["runs"].values()):
            for shift, bills in (
                (-0.2, [trainings.cents_on_instances(run) for run in arms[STATIC]]),
                (0.2, [trainings.cents_of(run) for run in arms[NITRO]]),
            ):
                bottom = 0.0
                for part, colour in zip(PARTS, (GREY, BLUE, "#b9d2ea"), strict=True):
                    value = over_seeds(bill.get(part, 0.0) for bill in bills)["interquartile_mean"]
                    axes.bar(
                        place + shift,
                        value,
                        width=0.36,
                        bottom=bottom,
                        color=colour,
                        label=part if place == 0 and shift > 0 else None,
                    )
                    bottom += value
        titles = [ENVIRONMENTS[name] for name in of_algorithm["runs"]]
        ticks = {
            place + shift: label
            for place, title in enumerate(titles)
            for shift, label in ((-0.2, "16 actors"), (0.0, f"\n{title}"), (0.2, "with Nitro"))
        }
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.tick_params("x", length=0)
        axes.set(
            title=algorithm, ylabel="modelled cents of a training", xlim=(-0.5, len(titles) - 0.5)
        )
    figure.legend(
        *columns[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=len(PARTS),
        frameon=False,
    )
    return figure
