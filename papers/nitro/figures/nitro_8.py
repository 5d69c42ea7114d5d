"""Nitro Fig. 8: rewards around the policies with the lowest, the median and the highest R of ten rounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from papers.estimates import excludes
from papers.nitro.figures import surfaces
from papers.nitro.figures.replays import OURS, PLACES, chosen_rounds, measured, trainer


def measure(work: Path) -> dict[str, Any]:
    lines = measured(
        work / "nitro_8.jsonl", f"{OURS} {surfaces.COARSE} {surfaces.FINE}", OURS, _surfaces
    )
    return {
        setting: {"lines": rows, "compared": surfaces.compared(rows, PLACES, "highest")}
        for setting, rows in lines.items()
    }


def _surfaces(file: str, seed: int) -> dict[str, Any]:
    training, found = trainer(file, seed), {}
    for place, chosen in chosen_rounds(training).items():
        training.restore(chosen["snapshot"])
        found[place] = {
            "round_index": chosen["round_index"],
            "ratio": chosen["ratio"],
            **surfaces.both(training, chosen["samples"], seed),
        }
    return found


draw, page = (
    partial(function, names=PLACES, title="{name} R ({one[ratio]:.2f}), round {one[round_index]}")
    for function in (surfaces.draw, surfaces.page)
)


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    compared = [data["ours"]["compared"][place] for place in PLACES]
    is_poorer = excludes(compared[0]["share_less_base"]) < 0
    shares = [one["share_high"]["interquartile_mean"] for one in compared]
    return {
        "compared": compared,
        "rounds": {
            place: [line[place]["round_index"] for line in data["ours"]["lines"]]
            for place in PLACES
        },
        "status": "not"
        if not is_poorer
        else "reproduced"
        if shares == sorted(shares)
        else "partly",
    }
