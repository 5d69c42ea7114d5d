"""Draws docs/pictures/architecture.png: ``python docs/pictures/make_architecture.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

INK, BLUE, ORANGE, GREEN, SAND = "#222222", "#dbe8f5", "#fbe6cf", "#dcefdf", "#f4f1ea"


def draw() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(11, 5.4))
    axes.set(xlim=(0, 110), ylim=(0, 54))
    axes.axis("off")
    box(axes, 1, 2, 74, 50, "", SAND, edge="#bbb39f")
    axes.text(3, 49, "a laptop, or in AWS: the learner's instance and its cache", fontsize=10, color="#7a705a")

    box(axes, 5, 30, 18, 13, "Learner\nPPO; a checkpoint\nafter each round", BLUE)
    box(axes, 46, 30, 20, 13, "Trajectory cache\nRedis or Valkey", GREEN)
    box(axes, 5, 6, 18, 13, "Detector\nconvexity ratio R\nof the new policy", BLUE)
    box(axes, 31, 6, 15, 13, "Scaler\nscore S → I,\nactors wanted", BLUE)
    box(axes, 54, 6, 17, 13, "Budget\nreserves the worst\ncase, or shrinks", ORANGE)
    box(axes, 84, 6, 18, 13, "Fleet\nprocesses here,\nLambda in AWS", BLUE)
    for offset in (2.4, 1.2):
        box(axes, 84 + offset, 30 + offset, 18, 13, "", "#ffffff")
    box(axes, 84, 30, 18, 13, "Actors\none fragment each,\nepisodes go on", "#ffffff")

    arrow(axes, (23.6, 40), (45.4, 40), "1  weights", (34.5, 42))
    arrow(axes, (45.4, 33), (23.6, 33), "6  batch, in slot order", (34.5, 31))
    arrow(axes, (66.6, 40), (83.4, 40), "weights", (79.5, 42))
    arrow(axes, (83.4, 33), (66.6, 33), "5  samples", (78.6, 31))
    arrow(axes, (14, 29.4), (14, 19.6), "2  policy, samples", (14, 25))
    arrow(axes, (23.6, 12.5), (30.4, 12.5), "3  R", (27, 14.4))
    arrow(axes, (46.6, 12.5), (53.4, 12.5), "I", (50, 14.4))
    arrow(axes, (71.6, 12.5), (83.4, 12.5), "what fits", (79.6, 14.4))
    arrow(axes, (93, 19.6), (93, 29.4), "first actors at once (1),\nthe boost after the score (4)", (93, 24.6))
    return figure


def box(axes, x, y, width, height, text, colour, edge=INK) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.3,rounding_size=1.2", fc=colour, ec=edge,
                                  lw=1.1))
    first, _, rest = text.partition("\n")
    axes.text(x + width / 2, y + height - 2.8, first, ha="center", va="center", fontsize=11, weight="bold", color=INK)
    axes.text(x + width / 2, y + (height - 4) / 2, rest, ha="center", va="center", fontsize=9.3, color=INK)


def arrow(axes, start, end, text, at) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, lw=1.3, color=INK))
    is_upright = start[0] == end[0]
    axes.text(*at, text, ha="center", va="center", fontsize=8.8, color=INK,
              bbox={"fc": "white" if start[0] > 80 else SAND, "ec": "none", "pad": 1.2} if is_upright else None)


if __name__ == "__main__":
    draw().savefig(Path(__file__).with_name("architecture.png"), dpi=120, bbox_inches="tight")
