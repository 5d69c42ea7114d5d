"""Draws the two layouts of instances, instances.png and instances_asynchronous.png.

python docs/pictures/make_instances.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, ORANGE, SAND, WHITE, arrow, box, canvas, label, line, save

INSTANCES = (("Instance 0", 40.0), ("Instance 1", 66.0), ("Instance n − 1", 96.0))


def draw() -> plt.Figure:
    figure, axes = canvas(124, 62)
    box(
        axes,
        2,
        24,
        24,
        25,
        "Loop\nbudget, rounds,\ncheckpoints, report;\nmirror of the\nnewest version",
        BLUE,
    )
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


def draw_asynchronous() -> plt.Figure:
    figure, axes = canvas(140, 58)
    box(
        axes,
        2,
        22,
        24,
        25,
        "Loop\nbudget, rounds,\ncheckpoints, report;\nwho takes which\nchunk",
        BLUE,
    )
    box(axes, 2, 3, 24, 12, "Store\na folder of the run", SAND)
    for name, y in (("Instance 0", 34.0), ("Instance m − 1", 17.0)):
        box(axes, 48, y, 26, 13, f"{name}\n ", WHITE, edge=EDGE)
        box(axes, 49.5, y + 1, 13, 6, "environments", GREEN, size=8.5)
        box(axes, 64.5, y + 1, 8, 6, "policy", BLUE, size=8.5)
        arrow(axes, (74.6, y + 4), (84.4, y + 4), "2  write", (79.5, y + 6), WHITE)
    box(
        axes,
        85,
        17,
        20,
        30,
        "Shared memory\nchunks: each holds\na fragment, with\none channel\nfor each field",
        SAND,
    )
    for name, y in (("Instance m", 34.0), ("Instance n − 1", 17.0)):
        box(axes, 116, y, 21, 13, f"{name}\n ", WHITE, edge=EDGE)
        box(axes, 118, y + 1, 17, 6, "trainer", ORANGE, size=9.5)
        arrow(axes, (105.6, y + 4), (115.4, y + 4), "5  read", (110.5, y + 6), WHITE)
    label(axes, (61, 32), "…", size=14)
    arrow(axes, (26.6, 40.5), (47.4, 40.5), "1  play these slots", (37, 42.8), WHITE)
    arrow(axes, (47.4, 25), (26.6, 25), "3  episodes", (37, 27.3), WHITE)
    line(axes, (14, 47.6), (14, 53), (126.5, 53))
    arrow(axes, (126.5, 53), (126.5, 47.8))
    label(axes, (70, 53), "4  train on these chunks", WHITE)
    label(axes, (126.5, 32), "6  sums of gradients", WHITE)
    line(axes, (126.5, 16.4), (126.5, 5))
    arrow(axes, (126.5, 5), (26.6, 5), "7  next version", (84, 5), WHITE)
    line(axes, (26.6, 11), (61, 11))
    arrow(axes, (61, 11), (61, 16.4))
    label(axes, (44, 11), "8  weights", WHITE)
    return figure


if __name__ == "__main__":
    save(draw(), "instances")
    save(draw_asynchronous(), "instances_asynchronous")
