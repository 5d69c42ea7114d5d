"""Nitro Fig. 3: rewards around the policy of the boostable round, after an update on 256, 2,048 and 4,096 samples."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from papers.estimates import excludes
from papers.nitro.figures import surfaces
from papers.nitro.figures.replays import OURS, STEPS, chosen_rounds, measured, trainer

ACTORS = (1, 8, 16)
NAMES = tuple(f"{actors * STEPS}" for actors in ACTORS)


def measure(work: Path) -> dict[str, Any]:
    lines = measured(
        work / "nitro_3.jsonl", f"{OURS} {surfaces.COARSE} {surfaces.FINE}", OURS, _surfaces
    )
    return {
        setting: {
            "lines": rows,
            "compared": surfaces.compared(rows, NAMES, NAMES[0]),
            "last_less_middle": surfaces.compared(rows, NAMES, NAMES[1])[NAMES[2]][
                "share_less_base"
            ],
        }
        for setting, rows in lines.items()
    }


def _surfaces(file: str, seed: int) -> dict[str, Any]:
    training = trainer(file, seed)
    chosen = chosen_rounds(training)["lowest"]
    found: dict[str, Any] = {"round_index": chosen["round_index"], "ratio": chosen["ratio"]}
    for name, actors in zip(NAMES, ACTORS, strict=True):
        training.restore(chosen["snapshot"])
        samples = training.update(training.roll_out(chosen["round_index"], actors)).samples
        found[name] = surfaces.both(training, samples, seed)
    return found


draw, page = (
    partial(function, names=NAMES, title="{name} samples, round {row[round_index]}")
    for function in (surfaces.draw, surfaces.page)
)


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    ours = data["ours"]
    has_more = excludes(ours["compared"][NAMES[1]]["share_less_base"]) > 0
    goes_on = excludes(ours["last_less_middle"]) > 0
    return {
        "goes_on": goes_on,
        "compared": [ours["compared"][name] for name in NAMES],
        "status": "not" if not has_more else "reproduced" if goes_on else "partly",
    }
