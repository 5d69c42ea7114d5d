"""Draws docs/pictures/instances.png, a round of instances: ``python docs/pictures/make_instances.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, ORANGE, SAND, WHITE, arrow, box, canvas, label, line, save

INSTANCES = (("Instance 0", 40.0), ("Instance 1", 66.0), ("Instance n − 1", 96.0))


def draw() -> plt.Figure:
    figure, axes = canvas(124, 62)
    box(axes, 2, 24, 24, 25, "Loop\nbudget, rounds,\ncheckpoints, report;\nmirror of the\nnewest version", BLUE)
    box(axes, 2, 3, 24, 12, "Store\na folder of the run", SAND)
    for name, x in INSTANCES:
        box(axes, x, 17, 22, 32, f"{name}\n ", WHITE, edge=EDGE)
        box(axes, x + 2, 34, 18, 9.5, "environments", GREEN, size=9.5)
        box(axes, x + 2, 25.5, 18, 6, "policy", BLUE, size=9.5)
        box(axes, x + 2, 18.5, 18, 5, "trainer", ORANGE, size=9.5)
    label(axes, (92, 33), "…", size=16)
    line(axes, (14, 49.6), (14, 56), (107, 56))
    for _, x in INSTANCES:
        arrow(axes, (x + 11, 56), (x + 11, 49.8))
    label(axes, (52, 58.5), "1  play these slots      3  do your part of the update", WHITE)
    arrow(axes, (39.4, 40), (26.6, 40), "2  episodes", (33, 42.3), WHITE)
    line(axes, (51, 16.4), (51, 9), (107, 9), (107, 16.4))
    for _, x in INSTANCES:
        arrow(axes, (x + 11, 9), (x + 11, 16.6))
    label(axes, (79, 5.4), "4  sums of gradients, counts, means and variances; no samples", WHITE)
    arrow(axes, (44, 16.4), (26.6, 8), "5  next version", (38, 7.5), WHITE)
    arrow(axes, (14, 15.6), (14, 23.4), "6  mirror", (20, 19.5))
    return figure


if __name__ == "__main__":
    save(draw(), "instances")
