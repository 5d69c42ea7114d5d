"""Draws docs/pictures/rooms.png: the folders of runtime, and their imports: ``python docs/pictures/make_rooms.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, ORANGE, SAND, SHADE, WHITE, arrow, box, canvas, label, save

LAYERS = (
    ("entry points", (("cli", WHITE), ("pool", WHITE))),
    ("assembly and operations", (("operations", ORANGE), ("planning", ORANGE), ("backends", BLUE))),
    ("training loop; list of kinds", (("training", BLUE), ("registry", WHITE))),
    ("instances on one machine", (("gmi", GREEN),)),
    ("actors and learner", (("fleet", GREEN), ("sampling", BLUE), ("learner", BLUE))),
    (
        "exchangeable parts; output",
        (
            ("cost", GREEN),
            ("scaler", GREEN),
            ("detector", GREEN),
            ("display", GREEN),
            ("export", GREEN),
            ("report", GREEN),
        ),
    ),
    ("contracts between parts", (("ports", WHITE),)),
    ("run directory; guard", (("records", ORANGE), ("guard", ORANGE))),
    ("experiment file; AWS access", (("config", ORANGE), ("aws", ORANGE))),
    ("shared base", (("settings", WHITE), ("names", WHITE), ("processes", WHITE))),
    ("errors", (("errors", WHITE),)),
)
"""Top first. A room may import only rooms of lower layers; `tests/test_imports.py` checks that."""
STEP, LEFT, BOTTOM = 7.6, 32.0, 12.0
"""Height of a layer, left edge of its rooms, and lower edge of the lowest layer."""


def draw() -> plt.Figure:
    top = BOTTOM + STEP * len(LAYERS)
    figure, axes = canvas(118, top + 7)
    box(axes, 1, BOTTOM - 2, 96, top - BOTTOM + 6, "", SAND, edge=EDGE)
    axes.text(3, top + 1.6, "runtime/", fontsize=11, weight="bold", color=SHADE, va="center")
    for i, (layer, rooms) in enumerate(LAYERS):
        y = top - STEP * (i + 1) + 1
        axes.text(3, y + 2.5, layer, fontsize=9.3, color=SHADE, va="center")
        width = 15.0 if len(rooms) <= 3 else 10.0
        for j, (room, colour) in enumerate(rooms):
            box(
                axes,
                LEFT + j * (width + 0.8),
                y,
                width - 0.8,
                5,
                room,
                colour,
                size=11 if len(rooms) <= 3 else 10,
            )
    box(axes, LEFT, 1, 25, 5, "lambda_actor/", WHITE)
    axes.text(
        LEFT + 28,
        3.5,
        "runs in an actor; imports neither runtime/ nor torch",
        fontsize=9.3,
        color=SHADE,
        va="center",
    )
    arrow(axes, (LEFT + 12.5, BOTTOM - 2.4), (LEFT + 12.5, 6.6))
    box(axes, 102, top - 9, 14, 9, "stacks/\nAWS templates", WHITE)
    arrow(axes, (101.4, top - 4.5), (97.6, top - 4.5))
    label(axes, (109, BOTTOM + 25), "a room imports\nonly lower ones", size=9.3, colour=SHADE)
    arrow(axes, (109, BOTTOM + 22), (109, BOTTOM + 6))
    return figure


if __name__ == "__main__":
    save(draw(), "rooms")
