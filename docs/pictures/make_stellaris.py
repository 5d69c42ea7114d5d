"""Draws docs/pictures/stellaris.png, an update of Stellaris: ``python docs/pictures/make_stellaris.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, ORANGE, SAND, WHITE, arrow, box, canvas, label, line, save

LEARNERS = (("Learner function 1", 47.0), ("Learner function 2", 29.0), ("Learner function L", 3.0))


def draw() -> plt.Figure:
    figure, axes = canvas(114, 66)
    box(axes, 2, 47, 24, 11, "Actors\nsample with one policy", GREEN)
    box(
        axes,
        2,
        18,
        24,
        20,
        "Loop\nparameter function:\nwho waits, how stale,\nhow far it moves;\npolicy, optimizer",
        BLUE,
    )
    box(axes, 2, 1, 24, 10, "Meter\nreserves, settles", ORANGE)
    box(
        axes,
        47,
        18,
        20,
        20,
        "Store\nsamples of the update\npolicies by number\ngradients by job\n(each put once)",
        SAND,
    )
    for name, y in LEARNERS:
        box(axes, 88, y, 24, 11, f"{name}\na warm process or\nan invocation", GREEN)
    label(axes, (100, 21.5), "⋮", size=14)
    arrow(axes, (14, 46.4), (14, 38.8), "1  batch", (20, 42.6))
    arrow(axes, (14, 17.2), (14, 11.8), "3  worst case", (22, 14.5))
    arrow(axes, (26.6, 33), (46.4, 33), "2  samples, policy V", (36.5, 35))
    arrow(axes, (46.4, 22), (26.6, 22), "6  gradient of\nversion c", (36.5, 25))
    for _, y in LEARNERS:
        arrow(axes, (67.6, 30 if y > 20 else 25), (87.4, y + 7.5))
        arrow(axes, (87.4, y + 3), (67.6, 27 if y > 20 else 21))
    label(axes, (63, 48), "5  pull policy and\npublished ones;\nput one gradient", WHITE)
    line(axes, (26.6, 37), (30, 37), (30, 62.5), (100, 62.5))
    arrow(axes, (100, 62.5), (100, 58.8))
    label(axes, (64, 62.5), "4  job: part of the samples, versions to pull", WHITE)
    label(
        axes,
        (53, 8),
        "7  if the mean staleness is within the bound\nor all learners wait,\n"
        "each waiting gradient is one step at α · max(s, 1)^(−1/v),\nV grows by 1, and the next policy is put",
        WHITE,
    )
    return figure


if __name__ == "__main__":
    save(draw(), "stellaris")
