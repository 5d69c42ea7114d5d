"""The style of the pictures of benchmarks and papers."""

from __future__ import annotations

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


def saved(figure: Any, path: Path, dpi: int = 100, **options: Any) -> None:
    """Saves a picture without the top and right lines of its panels."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=dpi, **options)
    pyplot.close(figure)
