"""Draws docs/pictures/rooms.png: the folders, and which may import which: ``python docs/pictures/make_rooms.py``."""

from __future__ import annotations

import matplotlib.pyplot as plt
from drawing import BLUE, EDGE, GREEN, ORANGE, SAND, SHADE, WHITE, arrow, box, canvas, label, save

LAYERS = (
    ("what people call", (("cli", WHITE), ("pool", WHITE))),
    ("what puts parts together", (("operations", ORANGE), ("planning", ORANGE), ("backends", BLUE))),
    ("the loop; which kinds there are", (("training", BLUE), ("registry", WHITE))),
    ("instances: play and train", (("gmi", GREEN),)),
    ("how a round works", (("fleet", GREEN), ("sampling", BLUE), ("learner", BLUE))),
    ("the parts, and what shows a run", (
        ("cost", GREEN), ("scaler", GREEN), ("detector", GREEN), ("display", GREEN), ("export", GREEN),
        ("report", GREEN))),
    ("the contracts", (("ports", WHITE),)),
    ("what is kept, and who ends it", (("records", ORANGE), ("guard", ORANGE))),
    ("the file; the door to AWS", (("config", ORANGE), ("aws", ORANGE))),
    ("settings; names; child processes", (("settings", WHITE), ("names", WHITE), ("processes", WHITE))),
    ("errors", (("errors", WHITE),)),
)
"""From the top: a room knows those of the layers below its own, and no other; `tests/test_imports.py` holds that."""
STEP, LEFT, BOTTOM = 7.6, 32.0, 12.0
"""Height of a layer, left edge of its rooms, and lower edge of the lowest layer."""


def draw() -> plt.Figure:
    top = BOTTOM + STEP * len(LAYERS)
    figure, axes = canvas(118, top + 7)
    box(axes, 1, BOTTOM - 2, 96, top - BOTTOM + 6, "", SAND, edge=EDGE)
    axes.text(3, top + 1.6, "runtime/", fontsize=11, weight="bold", color=SHADE, va="center")
    for i, (what, rooms) in enumerate(LAYERS):
        y = top - STEP * (i + 1) + 1
        axes.text(3, y + 2.5, what, fontsize=9.3, color=SHADE, va="center")
        width = 15.0 if len(rooms) <= 3 else 10.0
        for j, (room, colour) in enumerate(rooms):
            box(axes, LEFT + j * (width + 0.8), y, width - 0.8, 5, room, colour, size=11 if len(rooms) <= 3 else 10)
    box(axes, LEFT, 1, 25, 5, "lambda_actor/", WHITE)
    axes.text(LEFT + 28, 3.5, "what runs inside an actor: a leaf, without torch", fontsize=9.3, color=SHADE,
              va="center")
    arrow(axes, (LEFT + 12.5, BOTTOM - 2.4), (LEFT + 12.5, 6.6))
    box(axes, 102, top - 9, 14, 9, "stacks/\nAWS templates", WHITE)
    arrow(axes, (101.4, top - 4.5), (97.6, top - 4.5))
    label(axes, (109, BOTTOM + 25), "imports\npoint down", size=9.3, colour=SHADE)
    arrow(axes, (109, BOTTOM + 22), (109, BOTTOM + 6))
    return figure


if __name__ == "__main__":
    save(draw(), "rooms")
