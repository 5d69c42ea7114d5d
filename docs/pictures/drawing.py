"""Shared boxes, arrows and colors of the docs' pictures."""

from __future__ import annotations

import hashlib
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402
from matplotlib.text import Text  # noqa: E402

INK, BLUE, ORANGE, GREEN, SAND, WHITE = (
    "#222222",
    "#dbe8f5",
    "#fbe6cf",
    "#dcefdf",
    "#f4f1ea",
    "#ffffff",
)
EDGE, SHADE = "#bbb39f", "#7a705a"

Point = tuple[float, float]


def canvas(width: float, height: float) -> tuple[plt.Figure, plt.Axes]:
    """Returns an empty drawing. Ten units are an inch."""
    figure, axes = plt.subplots(figsize=(width / 10, height / 10))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(
    axes: plt.Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    colour: str,
    edge: str = INK,
    size: float = 11.0,
) -> None:
    """Draws a box with the first line of its text in bold."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0.3,rounding_size=1.2",
            fc=colour,
            ec=edge,
            lw=1.1,
        )
    )
    first, _, rest = text.partition("\n")
    title_y = y + height - 2.8 if rest else y + height / 2
    axes.text(
        x + width / 2,
        title_y,
        first,
        ha="center",
        va="center",
        fontsize=size,
        weight="bold",
        color=INK,
    )
    axes.text(
        x + width / 2, y + (height - 4) / 2, rest, ha="center", va="center", fontsize=9.3, color=INK
    )


def arrow(
    axes: plt.Axes,
    start: Point,
    end: Point,
    text: str = "",
    at: Point = (0.0, 0.0),
    behind: str = "none",
) -> None:
    """Draws an arrow, and its text at a separate point, on the color ``behind``."""
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, lw=1.3, color=INK, shrinkA=0, shrinkB=0
        )
    )
    if text:
        label(axes, at, text, behind)


def label(
    axes: plt.Axes, at: Point, text: str, behind: str = "none", size: float = 9.0, colour: str = INK
) -> None:
    """Draws a centered text."""
    axes.text(
        *at,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=colour,
        bbox={"fc": behind, "ec": "none", "pad": 1.2},
    )


def line(axes: plt.Axes, *points: Point) -> None:
    """Draws a line through points."""
    axes.add_line(plt.Line2D([x for x, _ in points], [y for _, y in points], lw=1.3, color=INK))


def drawn_from(figure: plt.Figure, name: str) -> str:
    """Returns a hash of a picture's program and of all that it says, such as numbers from templates."""
    folder = Path(__file__).parent
    words = [folder.joinpath(file).read_text() for file in (f"make_{name}.py", "drawing.py")]
    words += [text.get_text() for text in figure.findobj(Text)]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def save(figure: plt.Figure, name: str, **metadata: str) -> None:
    """Writes docs/pictures/NAME.png, with text chunks of these names."""
    figure.savefig(
        Path(__file__).with_name(f"{name}.png"),
        dpi=120,
        bbox_inches="tight",
        metadata={"Software": None, **metadata},
    )
