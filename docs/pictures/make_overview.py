"""Draws docs/pictures/overview.png, the picture of the README: ``python docs/pictures/make_overview.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, ORANGE, SAND, SHADE, WHITE, arrow, box, canvas, label, save


def draw() -> plt.Figure:
    figure, axes = canvas(106, 50)
    box(axes, 1, 2, 69, 46, "", SAND, edge=EDGE)
    label(axes, (24, 45.6), "your machine, or one instance in AWS", size=10, colour=SHADE)

    box(axes, 4, 27, 20, 13, "Learner\nimproves the policy\nfrom their experience", BLUE)
    box(axes, 45, 27, 21, 13, "Cache\nRedis or Valkey", GREEN)
    box(axes, 4, 5, 20, 13, "Scaler\nhow many actors\nare worth it?", BLUE)
    box(axes, 45, 5, 21, 13, "Budget\nreserves the worst\ncase, or starts fewer", ORANGE)
    for offset in (2.4, 1.2):
        box(axes, 83 + offset, 27 + offset, 19, 13, "", WHITE)
    box(axes, 83, 27, 19, 13, "Actors\neach plays a few\nhundred steps", WHITE)
    box(axes, 83, 5, 20, 13, "Fleet\nprocesses here,\nLambda in AWS", BLUE)

    arrow(axes, (24.6, 36.5), (44.4, 36.5), "new policy", (34.5, 38.4))
    arrow(axes, (44.4, 30.5), (24.6, 30.5), "experience", (34.5, 32.4))
    arrow(axes, (66.6, 36.5), (82.4, 36.5), "new policy", (76.6, 38.4))
    arrow(axes, (82.4, 30.5), (66.6, 30.5), "experience", (76.6, 32.4))
    arrow(axes, (14, 26.4), (14, 18.6), "signals, if it asks", (14, 22.5), SAND)
    arrow(axes, (24.6, 11.5), (44.4, 11.5), "actors wanted", (34.5, 13.4))
    arrow(axes, (66.6, 11.5), (82.4, 11.5), "what fits", (76.6, 13.4))
    arrow(axes, (93, 18.6), (93, 26.4), "starts them", (93, 22.5), WHITE)
    return figure


if __name__ == "__main__":
    save(draw(), "overview")
