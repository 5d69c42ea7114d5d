"""Nitro Fig. 7: the gain from boosting the rounds with the lowest, the median and the highest R of ten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREEN, GREY, ORANGE, dots, panels
from papers.estimates import differences, excludes, over_seeds
from papers.nitro.boosting.trainer import Trainer
from papers.nitro.figures import replays
from papers.nitro.figures.replays import ACTORS, OTHER_STREAMS, PLACES, SETTINGS, STEPS

CASES = {"Hopper-v5": SETTINGS["ours"]}
REPETITIONS, EPISODES = 2, 32


def measure(work: Path) -> dict[str, Any]:
    return summary(
        replays.measured(
            work / "nitro_7.jsonl",
            f"{CASES} {REPETITIONS} {EPISODES}",
            CASES,
            _training,
            key="case",
        )
    )


def _training(file: str, seed: int) -> dict[str, Any]:
    training = replays.trainer(file, seed)
    return {
        place: _boosted(training, chosen)
        for place, chosen in replays.chosen_rounds(training).items()
    }


def _boosted(training: Trainer, chosen: dict[str, Any]) -> dict[str, Any]:
    """Plays the round with one actor and with sixteen. Returns the returns before and after, and R after."""
    round_index, found = (
        chosen["round_index"],
        {"plain": [], "boosted": [], "ratio_after": [], "ratio_after_all": []},
    )
    training.restore(chosen["snapshot"])
    before = replays.mean_return(training, EPISODES * REPETITIONS)
    for repetition in range(REPETITIONS):
        training.restore(chosen["snapshot"])
        fragments = training.roll_out(round_index, ACTORS, seed=OTHER_STREAMS + repetition)
        training.update(fragments[:1])
        found["plain"].append(replays.mean_return(training, EPISODES, repetition))
        training.restore(chosen["snapshot"])
        samples = training.update(fragments).samples
        found["boosted"].append(replays.mean_return(training, EPISODES, repetition))
        found["ratio_after"].append(replays.ratio(training, samples, STEPS))
        if repetition == 0:
            found["ratio_after_all"].append(replays.ratio(training, samples))
    return {"round_index": round_index, "ratio": chosen["ratio"], "before": before, **found}


def summary(lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns, by case and place, the paper's gain, the gain over a plain round, and R's; lowest against highest."""
    result: dict[str, Any] = {}
    for case, rows in lines.items():
        found = {place: [row[place] for row in rows] for place in PLACES}
        boosted = {
            place: [np.mean(one["boosted"]) for one in of_place]
            for place, of_place in found.items()
        }
        gains = {
            place: np.array(boosted[place]) - [one["before"] for one in found[place]]
            for place in PLACES
        }
        over_plain = {
            place: np.array(boosted[place]) - [np.mean(one["plain"]) for one in found[place]]
            for place in PLACES
        }
        result[case] = {
            "seeds": [row["seed"] for row in rows],
            "places": {
                place: {
                    "ratio": over_seeds(one["ratio"] for one in found[place]),
                    "gain": over_seeds(gains[place]),
                    "gain_over_plain": over_seeds(over_plain[place]),
                    "ratio_gain": over_seeds(
                        _mean(one["ratio_after"]) - one["ratio"] for one in found[place]
                    ),
                    "rounds": [one["round_index"] for one in found[place]],
                }
                for place in PLACES
            },
            "lowest_less_highest": {
                "gain": differences(gains["lowest"], gains["highest"]),
                "gain_over_plain": differences(over_plain["lowest"], over_plain["highest"]),
            },
        }
    return result


def _mean(ratios: list[float | None]) -> float:
    known = [one for one in ratios if one is not None]
    return float(np.mean(known)) if known else float("nan")


def draw(data: dict[str, Any]) -> Any:
    figure, columns = panels(3, (14, 4.2))
    colours = dict(zip(PLACES, (BLUE, ORANGE, GREEN), strict=True))
    titles = {
        "gain": "Return after boosting less that before (the paper's gain)",
        "gain_over_plain": "Return after boosting less that after a plain round",
        "ratio_gain": "R after boosting less R before",
    }
    for axes, (key, title) in zip(columns, titles.items(), strict=True):
        for shift, place in enumerate(PLACES):
            dots(
                axes,
                [index + 0.2 * (shift - 1) for index in range(len(data))],
                [case["places"][place][key] for case in data.values()],
                color=colours[place],
                label=f"{place} R of the ten rounds",
            )
        axes.axhline(0.0, color=GREY, ls="--", lw=1)
        axes.set_xticks(range(len(data)), list(data))
        axes.set_xlim(-0.5, len(data) - 0.5)
        axes.set_title(title, fontsize=10)
    columns[0].legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 0.08))
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    signs = [excludes(one["lowest_less_highest"]["gain"]) for one in data.values()]
    return {"status": "reproduced" if min(signs) > 0 else "partly" if max(signs) > 0 else "not"}
