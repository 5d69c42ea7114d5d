"""The style of the pictures of benchmarks and papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as pyplot  # noqa: E402

BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f6fb0", "#d9822b", "#3a8f4d", "#8d5fa8", "#777777"


def panels(
    columns: int, size: tuple[float, float], rows: int = 1, **options: Any
) -> tuple[Any, Any]:
    """Returns a picture and its panels."""
    return pyplot.subplots(rows, columns, figsize=size, constrained_layout=True, **options)


def dots(
    axes: Any, places: Sequence[float], estimates: Sequence[Mapping[str, Any]], **style: Any
) -> None:
    """Draws estimates over seeds with vertical intervals."""
    axes.vlines(
        places,
        [one["interval_low"] for one in estimates],
        [one["interval_high"] for one in estimates],
        color=style.get("color"),
        lw=1.2,
    )
    axes.plot(
        places, [one["interquartile_mean"] for one in estimates], style.pop("fmt", "o"), **style
    )


def saved(figure: Any, path: Path, dpi: int = 100, **options: Any) -> None:
    """Saves a picture without the top and right lines of its panels."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=dpi, **options)
    pyplot.close(figure)
