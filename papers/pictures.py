"""One picture per paper, drawn from the results of its studies. The PNG carries their hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.drawing import BLUE, GREY, ORANGE, panels, saved
from papers.runs import Results, returns
from papers.stellaris.measures import returns_and_seconds

HASH = "Data"
"""Text chunk of a PNG with the hash of what it is drawn from."""
COLOURS = (GREY, BLUE, ORANGE)


def drawn_from(results: Results, picture: Mapping[str, Any]) -> str:
    """Returns the hash of a picture's data; empty if there are none yet."""
    contents = [results.runs(study) for study in picture["studies"].values()]
    if not any(contents):
        return ""
    whole = json.dumps([picture, contents], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def data_hash(path: Path) -> str:
    """Returns the hash that a picture carries; empty if there is none."""
    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get(HASH, ""))


def draw(results: Results, picture: Mapping[str, Any], path: Path) -> None:
    """Draws a picture of the protocol, if there are data for it.

    Args:
        picture: ``kind``, one of `DRAWINGS`; ``studies`` by label; and what the kind needs.
    """
    if whole := drawn_from(results, picture):
        figure = DRAWINGS[picture["kind"]](results, picture)
        saved(figure, path, metadata={HASH: whole})


def returns_and_actors(results: Results, picture: Mapping[str, Any]) -> Any:
    """Draws returns by round, and below them the actors of each round; a column for each study.

    Lines are means over seeds, and bands go from the lowest to the highest quarter.

    Args:
        picture: ``arms``: by label.
    """
    studies = {label: results.runs(study) for label, study in picture["studies"].items()}
    studies = {label: runs for label, runs in studies.items() if runs}
    size = 4.0 * len(studies), 4.6
    options = {"squeeze": False, "sharex": "col", "height_ratios": (3, 1)}
    figure, axes = panels(len(studies), size, 2, **options)
    for (label, by_arm), (above, below) in zip(studies.items(), axes.T, strict=True):
        for (name, arm), colour in zip(picture["arms"].items(), COLOURS, strict=False):
            runs = list(by_arm.get(arm, {}).values())
            if not runs:
                continue
            curves = np.array([returns(run) for run in runs])
            rounds = 1 + np.arange(curves.shape[1])
            above.plot(rounds, curves.mean(0), color=colour, label=name)
            low, high = np.quantile(curves, (0.25, 0.75), axis=0)
            above.fill_between(rounds, low, high, color=colour, alpha=0.2, lw=0)
            actors = np.mean([run["actor_count"] for run in runs], axis=0)
            below.stairs(actors, [0, *rounds], color=colour, baseline=None)
        above.set_title(label)
        below.set_xlabel("round")
        below.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("return")
    axes[1, 0].set_ylabel("actors")
    axes[0, 0].legend(frameon=False)
    return figure


DRAWINGS: Mapping[str, Callable[[Results, Mapping[str, Any]], Any]] = {
    "returns_and_actors": returns_and_actors,
    "returns_and_seconds": returns_and_seconds,
}
"""By the name in a picture's ``kind``."""
