"""Draws one run: ``python benchmarks/plot_run.py DIR PICTURE.png`` (needs requirements-dev.txt)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

BLUE, ORANGE, GREEN, GREY = "#2f6fb0", "#d9822b", "#3a8f4d", "#777777"


def plot(run: Path, picture: Path) -> None:
    """Returns and dollars of the run in ``run``, and actors with their score and R if R has set them."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    is_boosted = any(row["convexity_ratio"] is not None for row in rows)
    figure, panels = plt.subplots(2 if is_boosted else 1, 2, figsize=(11, 6.6 if is_boosted else 3.6), squeeze=False,
                                  constrained_layout=True)
    _draw_returns(panels[0, 0], rows)
    _draw_bill(panels[-1, -1], rows, summary)
    if is_boosted:
        _draw_actors(panels[0, 1], rows)
        _draw_ratio(panels[1, 0], rows)
    for axes in panels.flat:
        axes.spines["top"].set_visible(False)
        axes.spines["right"].set_visible(False)
    figure.suptitle(f"{summary['environment_id']}, {summary['experiment']}: {summary['env_steps_total']:,} steps in "
                    f"{summary['measured_session_s']:.0f} s on one machine")
    figure.savefig(picture, dpi=110)


def _draw_returns(axes, rows: list[dict]) -> None:
    steps = [row["env_steps_total"] / 1000 for row in rows]
    axes.plot(*_known(steps, rows, "episode_return_mean"), color=GREY, lw=1, label="training episodes")
    axes.plot(*_known(steps, rows, "evaluation_return_mean"), "o-", color=BLUE, ms=4, label="evaluation")
    axes.set(title="Return", xlabel="environment steps, thousands", ylabel="return of an episode")
    axes.legend(frameon=False)


def _draw_actors(axes, rows: list[dict]) -> None:
    rounds = [row["round_index"] for row in rows]
    axes.bar(rounds, [row["actor_count"] for row in rows], width=1.0, color=BLUE, alpha=0.85)
    axes.set(title="Actors, and the score that set them", xlabel="round", ylabel="actors")
    score = axes.twinx()
    score.plot(*_known(rounds, rows, "boosting_score"), ".", color=ORANGE, ms=5)
    score.plot(*_known(rounds, rows, "decay_weight"), "--", color=ORANGE, lw=1)
    score.set_ylim(0, 1)
    score.set_ylabel("boosting score (dots), d^k (dashed)", color=ORANGE)
    score.spines["top"].set_visible(False)


def _draw_ratio(axes, rows: list[dict]) -> None:
    axes.plot(*_known([row["round_index"] for row in rows], rows, "convexity_ratio"), ".-", color=GREEN, lw=0.8, ms=4)
    axes.set(title="Convexity ratio R of each round's policy", xlabel="round", ylabel="−λmax / λmin")
    axes.set_ylim(bottom=0)


def _draw_bill(axes, rows: list[dict], summary: dict) -> None:
    parts = {"actors": "actors_cost_usd", "provisioned": "provisioned_cost_usd", "learner": "learner_cost_usd",
             "cache, disk, address": "infrastructure_cost_usd"}
    sums = {name: _running_sum(row[key] * 100 for row in rows) for name, key in parts.items()}
    shown = {name: (sums[name], colour) for name, colour in zip(sums, (BLUE, ORANGE, GREY, GREEN), strict=True)
             if sums[name][-1]}
    axes.stackplot([row["round_index"] for row in rows], [one for one, _ in shown.values()], labels=list(shown),
                   colors=[colour for _, colour in shown.values()], alpha=0.85)
    axes.set(title=f"Modelled bill: {summary['spent_usd']:.4f} of {summary['budget_usd']:g} US dollars",
             xlabel="round", ylabel="US cents, cumulative")
    axes.legend(loc="upper left", frameon=False)


def _known(xs: list[float], rows: list[dict], key: str) -> tuple[list[float], list[float]]:
    pairs = [(x, row[key]) for x, row in zip(xs, rows, strict=True) if row[key] is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _running_sum(values) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, metavar="DIR", help="the run's directory")
    parser.add_argument("picture", type=Path, metavar="PICTURE.png", help="where it is drawn")
    options = parser.parse_args()
    plot(options.run, options.picture)
