"""Draws a rehearsal: ``python docs/pictures/make_rehearsal.py REHEARSAL.json [PICTURE.png]``.

The picture's default name is docs/pictures/rehearsal.png.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from drawing import BLUE, GREEN, INK, ORANGE, SAND, save

LANES = ("stack", "cache", "learner", "actors", "guard")
_TEXT_MIN = 2.0
"""Shorter bars have no room for a word."""
EDGE, SPENT, LIMIT = "#8a7f66", "#2f5f8f", "#a33b2e"


def draw(rehearsal: dict[str, Any]) -> plt.Figure:
    """Draws resources and events by lane, and the ledger's dollars below, both over minutes.

    Args:
        rehearsal: The content of one deployment's ``rehearsal.json``.
    """
    events = [event for event in rehearsal["events"] if event["at_s"] >= 0]
    done = {event["step"]: event["at_s"] / 60 for event in events if "step" in event}
    end = done["gone"]
    figure, (lanes, dollars) = plt.subplots(
        2, 1, figsize=(11, 6.2), sharex=True, gridspec_kw={"height_ratios": (5, 4), "hspace": 0.08}
    )
    _bar(lanes, "stack", 0.0, done.get("stack", end), SAND, "one experiment")
    found = {kind for kind, names in rehearsal["found_before"].items() if names}
    if "caches" in found:
        _bar(lanes, "cache", 0.0, done.get("cache", end), GREEN, "ElastiCache")
    else:
        lanes.text(0.3, _y("cache"), "none", va="center", fontsize=9, color=EDGE)
    _draw_learner(lanes, events, done.get("learner", end))
    _draw_actors(lanes, events)
    _draw_guard(lanes, rehearsal, events)
    lanes.set(ylim=(-0.6, len(LANES) - 0.4), yticks=range(len(LANES)), xlim=(-0.2, end * 1.02))
    has_pool = not found & {"auto scaling groups", "state machines"}
    lanes.set_yticklabels(
        ["pool" if lane == "learner" and has_pool else lane for lane in reversed(LANES)], color=INK
    )
    lanes.tick_params(length=0)
    lanes.set_title(
        f"A rehearsal: {rehearsal['clock_s'] / 60:.0f} minutes of a deployment, played in "
        f"{rehearsal['wall_s']:.0f} s without an account; dollars are modelled from list prices",
        fontsize=10,
        color=INK,
        loc="left",
    )
    _draw_dollars(dollars, rehearsal, end)
    for axes in (lanes, dollars):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def _bar(axes: plt.Axes, lane: str, start: float, end: float, colour: str, text: str = "") -> None:
    y = _y(lane)
    axes.barh(y, end - start, left=start, height=0.6, color=colour, edgecolor=EDGE, linewidth=0.8)
    axes.text(start + 0.3, y, text, va="center", fontsize=9, color=INK)


def _y(lane: str) -> int:
    return len(LANES) - 1 - LANES.index(lane)


def _draw_learner(axes: plt.Axes, events: list[dict[str, Any]], end: float) -> None:
    """Draws each instance from its launch, and from the start of its training."""
    ends = {
        event["instance"]: event["at_s"] / 60
        for event in reversed(events)
        if event.get("state") == "ended"
    }
    trainings = [
        event["at_s"] / 60
        for event in events
        if event["who"] == "ledger" and event["state"] == "training"
    ]
    for event in events:
        if event.get("state") == "launched":
            start = event["at_s"] / 60
            boots_min = min((at for at in trainings if at > start), default=end) - start
            _bar(
                axes,
                "learner",
                start,
                ends.get(event["instance"], end),
                "#ffffff",
                "boots" * (boots_min > _TEXT_MIN),
            )
    stops = [
        event["at_s"] / 60
        for event in events
        if event["who"] == "instance" and "service ended" in event["what"]
    ]
    for start in trainings:
        stop = min([at for at in [*stops, *trainings] if at > start], default=end)
        _bar(axes, "learner", start, stop, BLUE, "trains" * (stop - start > _TEXT_MIN))


def _draw_actors(axes: plt.Axes, events: list[dict[str, Any]]) -> None:
    rounds = [event for event in events if "round_index" in event]
    most = max((event["actor_count"] for event in rounds), default=1)
    for event in rounds:
        height = 0.7 * event["actor_count"] / most
        axes.bar(
            event["at_s"] / 60,
            height,
            width=0.15,
            bottom=_y("actors") - 0.35,
            color=ORANGE,
            edgecolor=EDGE,
            linewidth=0.6,
        )
    if rounds:
        counts = sorted({event["actor_count"] for event in rounds})
        axes.text(
            rounds[-1]["at_s"] / 60 + 0.5,
            _y("actors"),
            "one bar per round or call,\nas tall as its actors\n("
            f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))})",
            va="center",
            fontsize=8,
            color=EDGE,
        )


def _draw_guard(axes: plt.Axes, rehearsal: dict[str, Any], events: list[dict[str, Any]]) -> None:
    ticks = [at_s / 60 for at_s in rehearsal["ticks_s"] if at_s >= 0]
    axes.plot(ticks, [_y("guard")] * len(ticks), "|", markersize=9, color=EDGE)
    for event in events:
        if event["who"] == "guard":
            axes.plot(event["at_s"] / 60, _y("guard"), "o", color=LIMIT)
            axes.annotate(
                event["what"].split(";")[0],
                (event["at_s"] / 60, _y("guard")),
                (-8, -15),
                fontsize=9,
                textcoords="offset points",
                ha="right",
                color=LIMIT,
            )
            break


def _draw_dollars(axes: plt.Axes, rehearsal: dict[str, Any], end: float) -> None:
    (spend,) = rehearsal["spend"].values()
    rows = rehearsal["dollars"]
    minutes = [row["at_s"] / 60 for row in rows] + [end]
    spent = [row["spent_usd"] for row in rows] + [rows[-1]["spent_usd"]]
    promised = [row["spent_usd"] + row["reserved_usd"] for row in rows] + [rows[-1]["spent_usd"]]
    axes.fill_between(
        minutes, spent, promised, step="post", color=ORANGE, linewidth=0, label="reserved"
    )
    axes.step(minutes, spent, where="post", color=SPENT, label="spent")
    axes.axhline(spend["budget_usd"], color=LIMIT, label="budget")
    axes.axhline(
        spend["budget_usd"] - spend["tail_usd"],
        color=LIMIT,
        linestyle=":",
        label="budget minus teardown",
    )
    axes.set(
        ylim=(0, spend["budget_usd"] * 1.3),
        ylabel="US dollars",
        xlabel="minutes since the deployment",
    )
    axes.legend(loc="upper left", ncols=4, frameon=False, fontsize=9)


if __name__ == "__main__":
    figure = draw(json.loads(Path(sys.argv[1]).read_text()))
    if sys.argv[2:]:
        figure.savefig(sys.argv[2], dpi=120, bbox_inches="tight")
    else:
        save(figure, "rehearsal")
