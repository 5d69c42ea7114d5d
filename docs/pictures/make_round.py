"""Draws docs/pictures/round.png, who calls whom in a synchronous round: ``python docs/pictures/make_round.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, INK, ORANGE, SAND, SHADE, WHITE, arrow, box, canvas, save

PARTS = (
    ("Loop\nand its pacing", BLUE),
    ("Meter\nwith the budget", ORANGE),
    ("Flight\nwith fleet, cache", GREEN),
    ("Detector", BLUE),
    ("Scaler", BLUE),
    ("Updater\nwith the learner", BLUE),
)
LOOP, METER, FLIGHT, DETECTOR, SCALER, UPDATER = range(len(PARTS))
CALLS = (
    (METER, "1  open_round: reserves the worst case", ""),
    (FLIGHT, "2  publish(weights), start(first wave)", ""),
    (DETECTOR, "3  measure(curvature problem)", "convexity ratio R"),
    (SCALER, "4  decide(view with R)", "actors wanted"),
    (METER, "5  reserve(missing actors)", "how many fit"),
    (FLIGHT, "6  start(missing actors)", ""),
    (FLIGHT, "7  finish, until the deadline", "trajectories and failures, each settled"),
    (UPDATER, "8  submit(batch in slot order), poll", "a new policy version"),
    (METER, "9  close_round: records the cost", ""),
    (SCALER, "10  observe(row)", ""),
)
STEP, WIDTH, TOP = 5.6, 18.0, 9.0


def draw() -> plt.Figure:
    rows = sum(1 + bool(answer) * 0.75 for *_, answer in CALLS)
    bottom, width = 7.0, WIDTH * len(PARTS) + 6
    top = bottom + STEP * rows + 1
    figure, axes = canvas(width, top + TOP + 1)
    xs = [WIDTH * (i + 0.5) + 3 for i in range(len(PARTS))]
    for x, (name, colour) in zip(xs, PARTS, strict=True):
        axes.add_line(plt.Line2D((x, x), (bottom - 2, top), lw=1.0, ls=(0, (4, 3)), color=EDGE))
        box(axes, x - 8, top, 16, 8, name, colour)
    y = top
    for part, call, answer in CALLS:
        y -= STEP
        arrow(axes, (xs[LOOP], y), (xs[part], y))
        say(axes, (xs[LOOP] + 1.2, y + 1.7), call, color=INK)
        if answer:
            y -= STEP * 0.75
            axes.annotate(
                "",
                (xs[LOOP], y),
                (xs[part], y),
                arrowprops={
                    "arrowstyle": "-|>",
                    "ls": "--",
                    "color": SHADE,
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )
            say(axes, (xs[LOOP] + 1.2, y + 1.7), answer, color=SHADE, style="italic")
    written = "the row, the policy file and the checkpoint are written in the next round's step 2"
    box(axes, 3, 0.6, width - 6, 4, written, SAND, edge=EDGE, size=9.3)
    return figure


def say(axes: plt.Axes, at: tuple[float, float], text: str, **options: str) -> None:
    axes.text(
        *at,
        text,
        fontsize=9.0,
        va="center",
        bbox={"fc": WHITE, "ec": "none", "pad": 0.6},
        **options,
    )


if __name__ == "__main__":
    save(draw(), "round")
