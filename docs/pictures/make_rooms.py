"""Draws docs/pictures/rooms.png from the imports: ``python docs/pictures/make_rooms.py``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, ORANGE, WHITE, arrow, box, canvas, save

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.test_imports import module_name, named, room  # noqa: E402

ROOMS = {
    "lambda_actor": (1, "runs in an actor", WHITE),
    "experiment": (1, "the file and its keys", ORANGE),
    "records": (1, "the run's directory", ORANGE),
    "money": (1, "budget, meter, prices", GREEN),
    "fleet": (1, "runs actors", BLUE),
    "learner": (1, "algorithms, networks", BLUE),
    "detector": (0, "convexity ratio", GREEN),
    "scaler": (0, "number of actors", GREEN),
    "gmi": (1, "instances on a machine", BLUE),
    "show": (2, "terminal, report, exports", ORANGE),
    "training": (1, "rounds until an end", BLUE),
    "pool": (1, "actors for your trainer", WHITE),
    "aws": (3, "the door to AWS", ORANGE),
    "aws.guard": (3, "ends deployments", ORANGE),
    "aws.learner": (3, "a run on its instance", ORANGE),
    "aws.operations": (3, "status, stop, results", ORANGE),
    "cli": (0, "python -m runtime", WHITE),
    "stacks": (2, "what is deployed", WHITE),
    "nitro_rl": (1, "public names", WHITE),
}
"""Each room's column, what it does, and its colour. `errors`, `names`, `times` and `registry` are files."""
WIDTH, STEP = 25.0, 11.0
Arrows = Mapping[str, set[str]]


def imported() -> Arrows:
    """Returns the rooms that each room imports."""
    found: dict[str, set[str]] = {name: set() for name in ROOMS}
    for folder in ("runtime", "stacks", "nitro_rl", "lambda_actor"):
        for path in (ROOT / folder).glob("**/*.py"):
            own = room(module_name(path)) if folder == "runtime" else folder
            source = path.read_text()
            others = {room(name) for name in named(source, has_strings=False)}
            if "lambda_actor" in source:
                others.add("lambda_actor")
            if own in found:
                found[own] |= others & found.keys() - {own}
    return found


def below(name: str, arrows: Arrows) -> set[str]:
    """Returns all rooms that a room reaches."""
    direct = arrows[name]
    return direct | {other for one in direct for other in below(one, arrows)}


def level(name: str, arrows: Arrows) -> int:
    """Returns the length of the longest way down from a room."""
    return max((level(other, arrows) + 1 for other in arrows[name]), default=0)


def draw() -> plt.Figure:
    """Draws each room above all that it imports. An arrow that follows from others is left out."""
    arrows = imported()
    heights = {name: level(name, arrows) for name in ROOMS}
    figure, axes = canvas(4 * WIDTH, STEP * (max(heights.values()) + 1))
    centres = {
        name: (WIDTH * (column + 0.5), STEP * heights[name] + 5)
        for name, (column, _, _) in ROOMS.items()
    }
    for name, others in arrows.items():
        implied = {far for one in others for far in below(one, arrows)}
        for other in others - implied:
            (x, y), (to_x, to_y) = centres[name], centres[other]
            arrow(axes, (x, y - 4.3), (to_x, to_y + 4.2))
    for name, (_, words, colour) in ROOMS.items():
        x, y = centres[name]
        title = f"{name.replace('.', '/')}/\n{words}"
        box(axes, x - WIDTH / 2 + 1.5, y - 3.8, WIDTH - 3, 7.5, title, colour)
    return figure


if __name__ == "__main__":
    save(draw(), "rooms")
