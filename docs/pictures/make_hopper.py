"""Draws a run of Nitro's scaler by rounds: ``python docs/pictures/make_hopper.py RUN``.

RUN is the directory of ``python -m runtime train experiments/hopper.yaml --out RUN``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from drawing import save

RETURN, TRAINING, R, SCORE, ACTORS = "#2f6fb0", "#e5b887", "#8e4aa8", "#3a8f4d", "#d9822b"


def draw(rows: list[dict[str, Any]], summary: dict[str, Any]) -> plt.Figure:
    """Draws return, R, score and actors, one above the other.

    Args:
        rows: Of ``rounds.jsonl``.
        summary: Of ``summary.json``.
    """
    figure, (returns, ratio, score, actors) = plt.subplots(
        4,
        1,
        figsize=(11, 7),
        sharex=True,
        layout="constrained",
        gridspec_kw={"height_ratios": (3, 1.3, 1.3, 1.3)},
    )
    rounds = [row["round_index"] for row in rows]
    returns.plot(
        rounds,
        [row["episode_return_mean"] for row in rows],
        color=TRAINING,
        label="training episodes",
    )
    evaluated = [
        (row["evaluation_round"], row["evaluation_return_mean"])
        for row in rows
        if row["evaluation_return_mean"] is not None
    ]
    returns.plot(*zip(*evaluated, strict=True), "o-", ms=4, color=RETURN, label="evaluation")
    returns.axhline(3000, color="#999999", lw=0.8, ls="--")
    returns.legend(frameon=False, loc=(0.01, 0.62))
    ratio.plot(rounds, [row["convexity_ratio"] for row in rows], color=R)
    score.step(rounds, [row["boosting_score"] for row in rows], where="mid", color=SCORE)
    actors.bar(rounds, [row["actor_count"] for row in rows], width=0.8, color=ACTORS)
    for axes, name in (
        (returns, "return of\nan episode"),
        (ratio, "convexity\nratio R"),
        (score, "score\nof R"),
        (actors, "actors"),
    ):
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    actors.set_xlabel("round")
    actors.margins(x=0.01)
    figure.suptitle(
        f"experiments/hopper.yaml: rounds with a low R beside the last six get more actors, later ones fewer\n"
        f"{summary['env_steps_total']:,} steps in {summary['rounds']} rounds with {summary['actors']:,} actors",
        fontsize=11,
    )
    return figure


if __name__ == "__main__":
    run = Path(sys.argv[1])
    save(
        draw(
            [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()],
            json.loads((run / "summary.json").read_text()),
        ),
        "hopper",
    )
