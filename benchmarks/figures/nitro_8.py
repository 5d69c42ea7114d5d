"""Nitro Fig. 8: rewards around the policies with the lowest, the median and the highest R of ten rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import nitro_7, replays, surfaces
from benchmarks.figures.nitro_7 import PLACES
from benchmarks.figures.replays import OURS

PAPER = (
    "§5.2: the surface is poorer, with fewer regions of high reward, the lower R is (0.78, 2.16 and 3.43). One "
    "run.")
METHOD = (
    "the settings of `experiments/hopper.yaml`, five seeds: the policies of ten rounds whose R is lowest, "
    "median and highest, before they are boosted; grids as in Fig. 3, on the samples that R was measured on; "
    "`python -m benchmarks.figures nitro_8 --page` makes a page of it that can be turned.")
def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_8.jsonl", f"{OURS} {surfaces.COARSE} {surfaces.FINE}")
    for setting, file in OURS.items():
        for seed in replays.SEEDS:
            kept.once({"setting": setting, "seed": seed}, lambda file=file, seed=seed: _surfaces(file, seed))
    kept.close()
    return {setting: {"lines": rows, "compared": surfaces.compared(rows, PLACES, "highest")} for setting in OURS
            if (rows := [line for line in kept.lines if line["setting"] == setting])}


def _surfaces(file: str, seed: int) -> dict[str, Any]:
    training, found = replays.trainer(file, seed), {}
    for place, chosen in nitro_7.chosen_rounds(training).items():
        training.restore(chosen["snapshot"])
        found[place] = {"round_index": chosen["round_index"], "ratio": chosen["ratio"],
                        **surfaces.both(training, chosen["samples"], seed)}
    return found


def panels(data: dict[str, Any]) -> list[tuple[str, list[list[float]]]]:
    """Titles and surfaces of the first seed."""
    return [(f"{replays.SETTING_NAMES[setting]}: {place} R ({row[place]['ratio']:.2f}), round "
             f"{row[place]['round_index']}", row[place]["drawn"]["returns"])
            for setting in data for row in data[setting]["lines"][:1] for place in PLACES]


def draw(data: dict[str, Any], path: Path) -> None:
    surfaces.draw(panels(data), path, columns=len(PLACES))


def page(data: dict[str, Any], path: Path) -> None:
    surfaces.page(panels(data), path, columns=len(PLACES))


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    compared, lines = data["ours"]["compared"], data["ours"]["lines"]
    is_poorer = replays.excludes(compared["lowest"]["share_less_base"]) < 0
    shares = [compared[place]["share_high"]["interquartile_mean"] for place in PLACES]
    low, high = (", ".join(str(line[place]["round_index"]) for line in lines) for place in (PLACES[0], PLACES[-1]))
    return "reproduced" if is_poorer and shares == sorted(shares) else "partly" if is_poorer else "not", (
        "The share of the surface that returns more than nine tenths of that at the highest R, at the lowest, the "
        "median and the highest R: "
        f"{', '.join(replays.text(compared[place]['share_high'], 2) for place in PLACES)}. Five seeds; one is drawn. "
        f"The policy in the middle returns {', '.join(replays.text(compared[place]['centre']) for place in PLACES)}. "
        f"The lowest R came in rounds {low}, the highest in {high}, and later policies return more anyway.")
