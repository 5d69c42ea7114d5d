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
    """Returns, actors with their score, R, and dollars of the run in ``run``, over its rounds and steps."""
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    steps = [row["env_steps_total"] / 1000 for row in rows]
    figure, ((returns, actors), (ratio, money)) = plt.subplots(2, 2, figsize=(11, 6.6), constrained_layout=True)

    returns.plot(*_known(steps, rows, "episode_return_mean"), color=GREY, lw=1, label="training episodes")
    returns.plot(*_known(steps, rows, "evaluation_return_mean"), "o-", color=BLUE, ms=4, label="evaluation")
    returns.set(title="Return", xlabel="environment steps, thousands", ylabel="return of an episode")
    returns.legend(frameon=False)

    rounds = [row["round_index"] for row in rows]
    actors.bar(rounds, [row["actor_count"] for row in rows], width=1.0, color=BLUE, alpha=0.85)
    actors.set(title="Actors, and the score that set them", xlabel="round", ylabel="actors")
    score = actors.twinx()
    score.plot(*_known(rounds, rows, "boosting_score"), ".", color=ORANGE, ms=5)
    score.plot(*_known(rounds, rows, "decay_weight"), "--", color=ORANGE, lw=1)
    score.set_ylim(0, 1)
    score.set_ylabel("boosting score (dots), d^k (dashed)", color=ORANGE)

    ratio.plot(*_known(rounds, rows, "convexity_ratio"), ".-", color=GREEN, lw=0.8, ms=4)
    ratio.set(title="Convexity ratio R of each round's policy", xlabel="round", ylabel="−λmax / λmin")
    ratio.set_ylim(bottom=0)

    parts = {"actors": "actors_cost_usd", "provisioned": "provisioned_cost_usd", "learner": "learner_cost_usd",
             "cache, disk, address": "infrastructure_cost_usd"}
    money.stackplot(rounds, [_running_sum(row[key] * 100 for row in rows) for key in parts.values()],
                    labels=list(parts), colors=[BLUE, ORANGE, GREY, GREEN], alpha=0.85)
    money.set(title=f"Modelled bill: {summary['spent_usd']:.4f} of {summary['budget_usd']:g} US dollars",
              xlabel="round", ylabel="US cents, cumulative")
    money.legend(loc="upper left", frameon=False)

    for axes in (returns, actors, ratio, money):
        axes.spines[["top", "right"]].set_visible(axes is actors)
    figure.suptitle(f"{summary['environment_id']}, {summary['experiment']}: {summary['env_steps_total']:,} steps in "
                    f"{summary['measured_session_s']:.0f} s on one machine")
    figure.savefig(picture, dpi=110)


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
