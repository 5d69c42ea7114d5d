"""Analyzes the competition: estimates with intervals, and pictures. ``python -m papers.competition.analyse``.

Reads the runs of each workload in papers/competition/results, and writes analysis.json and a picture for each
question there. Estimates follow rliable, without the library: interquartile means with 95 % percentile intervals of a
bootstrap, and probabilities of improvement (Agarwal et al. 2021).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D

from benchmarks.drawing import BLUE, panels, saved
from benchmarks.parity.estimates import probability_of_improvement
from papers.competition.plan import RESULTS, WORKLOADS
from papers.estimates import over_seeds
from papers.runs import INSTANCE_START_S, LARGE_ACTORS_USD_PER_HOUR, PAPERS_LEARNER_USD_PER_HOUR

REFERENCE = "fixed"
RESAMPLES = 2_000
FEW_SEEDS = 5
LEARNER_USD_PER_HOUR = 0.08925
"""The file's c7i.large."""
RECENT_STEPS = 20_480
"""Number of last steps whose episodes count for a return."""
NEVER = 1e9
SPREADS = (1, 10, 100)
"""Number of runs over which the cost of a rule's pre-training is spread."""
READS_PRICES = ("noise-scale", "minions")
"""Rules whose decisions depend on prices."""
GREY = "#9a9a9a"
STORY = {
    "fixed-8": ("8 actors, always", BLUE),
    "fixed": ("24 actors, always", GREY),
    "nitro": ("Nitro's rule", "#c05f12"),
    "minions": ("MinionsRL's learned scheduler", "#2a8a4a"),
}
"""Rules of the page's first picture, with their labels and colors."""

Found = Mapping[str, Any]


def cents(run: Found) -> float:
    """Returns the modelled cents until the run ended: a lower bound if it did not reach its target."""
    return 100.0 * float(run["spent_usd"])


def cents_with_papers_learner(run: Found) -> float:
    """Returns the cost of the same history if the learner's instance had the paper's price and the same speed."""
    factor = PAPERS_LEARNER_USD_PER_HOUR / LEARNER_USD_PER_HOUR
    return cents(run) + 100.0 * float(run["learner_cost_usd"]) * (factor - 1.0)


def cents_without_serverless(run: Found) -> float:
    """Returns the cost of the same history with actors on an instance for the whole run, as fast as on Lambda."""
    stands_s = float(run["modelled_s"]) + INSTANCE_START_S
    return (
        cents(run)
        - 100.0 * float(run["actors_cost_usd"])
        + 100.0 * LARGE_ACTORS_USD_PER_HOUR * stands_s / 3600.0
    )


def cents_or_never(run: Found) -> float:
    """Returns cents to the target, for ranks: runs that missed it come last."""
    return cents(run) if run["stop_reason"] == "target_return" else NEVER


def return_at(run: Found, usd: float) -> float:
    """Returns the mean return of the training episodes that ended in the last steps before ``usd`` was spent.

    Evaluations would show better policies, but they begin only halfway to the target, so rules would not be comparable.
    NaN until an episode has ended.
    """
    rows = run["rows"]
    spent, steps = np.cumsum(rows["round_cost_usd"]), np.array(rows["env_steps_total"])
    until = int(np.searchsorted(spent, usd, side="right"))
    if not until:
        return math.nan
    recent = np.arange(until)[steps[:until] > steps[until - 1] - RECENT_STEPS]
    episodes = np.array([rows["episodes_finished"][index] for index in recent], float)
    returns = np.array([rows["episode_return_mean"][index] or 0.0 for index in recent])
    return float((episodes * returns).sum() / episodes.sum()) if episodes.sum() else math.nan


def interquartile_means(
    runs: Mapping[str, Sequence[Found]], score: Callable[[Found], float]
) -> dict[str, dict[str, float]]:
    """Returns estimate and interval by rule."""
    found = {rule: over_seeds(score(run) for run in of_rule) for rule, of_rule in runs.items()}
    return {
        rule: {
            "interquartile_mean": _short(one["interquartile_mean"]),
            "low": _short(one["interval_low"]),
            "high": _short(one["interval_high"]),
        }
        for rule, one in found.items()
    }


def improvements(
    runs: Mapping[str, Sequence[Found]], score: Callable[[Found], float]
) -> dict[str, dict[str, float]]:
    """Returns by rule the probability that its run scores higher than one of the reference, with its interval."""
    scores = {rule: np.array([score(run) for run in of_rule]) for rule, of_rule in runs.items()}
    return _estimated(
        "probability",
        probability_of_improvement,
        {rule: [values, scores[REFERENCE]] for rule, values in scores.items() if rule != REFERENCE},
    )


def with_pretraining(everything: Found) -> dict[str, dict[str, Any]]:
    """Returns, for each pre-trained rule, the cost of pre-training, and cents to the target including it."""
    found = {}
    runs = by_rule(everything["runs"])
    for rule, usd in everything.get("pretraining_usd", {}).items():
        if rule in runs:
            found[rule] = {"pretraining_cents": _short(100.0 * usd)} | {
                f"spread_over_{count}": interquartile_means(
                    {rule: runs[rule]},
                    lambda run, usd=usd, count=count: cents(run) + 100.0 * usd / count,
                )[rule]
                for count in SPREADS
            }
    return found


def analyse(everything: Found) -> dict[str, Any]:
    """Returns all estimates of a workload."""
    runs = by_rule(everything["runs"])
    levels = everything["workload"]["levels_usd"]
    return {
        "seeds": {rule: len(of_rule) for rule, of_rule in runs.items()},
        "settings": everything["chosen"],
        "reached": {
            rule: sum(run["stop_reason"] == "target_return" for run in of_rule)
            for rule, of_rule in runs.items()
        },
        "cents_to_target": interquartile_means(runs, cents),
        "cents_to_target_with_pretraining": with_pretraining(everything),
        "cheaper_than_fixed": improvements(runs, lambda run: -cents_or_never(run)),
        "modelled_minutes": interquartile_means(runs, lambda run: float(run["modelled_s"]) / 60.0),
        "steps": interquartile_means(runs, lambda run: float(run["env_steps_total"])),
        "cents_with_the_papers_learner": interquartile_means(
            {rule: of_rule for rule, of_rule in runs.items() if rule not in READS_PRICES},
            cents_with_papers_learner,
        ),
        "cents_without_serverless": interquartile_means(runs, cents_without_serverless),
        "return_at_cents": {
            f"{100 * usd:g}": {
                "estimates": interquartile_means(runs, lambda run, usd=usd: return_at(run, usd)),
                "better_than_fixed": improvements(runs, lambda run, usd=usd: return_at(run, usd)),
            }
            for usd in levels
        },
    }


def by_rule(runs: Sequence[Found]) -> dict[str, list[Found]]:
    """Groups runs by rule, in the order of the competition."""
    grouped: dict[str, list[Found]] = {}
    for run in runs:
        grouped.setdefault(run["rule"], []).append(run)
    return grouped


def draw_curves(name: str, everything: Found) -> None:
    """Draws each rule's returns against dollars in its own panel, over the reference's."""
    runs = by_rule(everything["runs"])
    others = [rule for rule in runs if rule != REFERENCE]
    columns = min(5, len(others))
    lines = -(-len(others) // columns)
    figure, axes = panels(
        columns,
        (11.0, 0.8 + 1.9 * lines if lines > 1 else 3.6),
        lines,
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axis in axes.flat[len(others) :]:
        axis.axis("off")
    # A few long runs would squeeze all others.
    grid = np.linspace(
        0.0, float(np.quantile([run["spent_usd"] for run in everything["runs"]], 0.95)), 160
    )
    for axis, rule in zip(axes.flat, others, strict=False):
        for shown, colour in ((REFERENCE, GREY), (rule, BLUE)):
            values = np.array([[return_at(run, usd) for usd in grid] for run in runs[shown]])
            for one, run in zip(values, runs[shown], strict=True):
                axis.plot(
                    100 * grid,
                    np.where(grid <= run["spent_usd"], one, np.nan),
                    color=colour,
                    lw=0.6,
                    alpha=0.5,
                )
            axis.plot(
                100 * grid,
                _while_all_run(np.median(values, axis=0), grid, runs[shown]),
                color=colour,
                lw=1.8,
                label=shown if shown == REFERENCE else "the rule",
            )
        axis.set_title(_label(rule, everything), fontsize=10)
    handles = [
        Line2D([], [], color=colour, lw=width)
        for colour, width in ((BLUE, 1.8), (GREY, 1.8), (GREY, 0.6))
    ]
    labels = [
        "median of the rule's runs, until the first ends",
        f"of {_label(REFERENCE, everything)}",
        "a run",
    ]
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    figure.supxlabel("modelled cents", fontsize=10)
    figure.supylabel("return in training", fontsize=10)
    saved(figure, RESULTS / f"{name}_returns.png", 140)


def draw_cents(found: Mapping[str, Found]) -> None:
    """Draws cents to the target, by workload and rule: each seed, and the interquartile mean with its interval."""
    columns = 3 if len(found) == 3 else 2
    lines = -(-len(found) // columns)
    figure, axes = panels(columns, (2.0 + 4.2 * columns, 0.3 + 3.7 * lines), lines, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    for axis, (name, everything) in zip(axes.flat, found.items(), strict=False):
        runs = by_rule(everything["runs"])
        estimates = interquartile_means(runs, cents)
        order = sorted(runs, key=lambda rule, known=estimates: -known[rule]["interquartile_mean"])
        below = 0.02 * len(order)
        for y, rule in enumerate(order):
            for run in runs[rule]:
                reached = run["stop_reason"] == "target_return"
                axis.plot(
                    cents(run),
                    y,
                    "o" if reached else ">",
                    ms=4,
                    color=GREY,
                    mfc=GREY if reached else "none",
                )
            one = estimates[rule]
            axis.plot([one["low"], one["high"]], [y - below] * 2, color=BLUE, lw=2)
            axis.plot(one["interquartile_mean"], y - below, "D", ms=5, color=BLUE)
        axis.set_yticks(range(len(order)), [_label(rule, everything) for rule in order], fontsize=9)
        axis.set_xlim(left=0)
        axis.set_xlabel(
            f"modelled cents to a return of {everything['workload']['target_return']:,.0f}"
        )
        axis.set_title(_title(name), fontsize=11, fontweight="bold")
    handles = [
        Line2D([], [], color=GREY, marker="o", ls="", ms=4),
        Line2D([], [], color=BLUE, marker="D", ms=5, lw=2),
    ]
    figure.legend(
        handles,
        ["a run", "interquartile mean of five runs, with its 95 % interval"],
        frameon=False,
        fontsize=9,
        ncols=2,
        loc="outside upper center",
    )
    saved(figure, RESULTS / "cents_to_target.png", 140)


def draw_story(found: Mapping[str, Found]) -> None:
    """Draws a few rules' median return against dollars, with a panel for each workload."""
    figure, axes = panels(len(found), (11.0, 3.5), squeeze=False)
    for axis, (name, everything) in zip(axes.flat, found.items(), strict=True):
        runs = by_rule(everything["runs"])
        grid = np.linspace(0.0, max(run["spent_usd"] for run in everything["runs"]), 400)
        for rule, (_, colour) in STORY.items():
            if rule in runs:
                values = np.array([[return_at(run, usd) for usd in grid] for run in runs[rule]])
                axis.plot(
                    100 * grid,
                    _while_all_run(np.median(values, axis=0), grid, runs[rule]),
                    color=colour,
                    lw=2,
                )
        axis.set_title(_title(name), fontsize=11, fontweight="bold")
        axis.set_xlim(left=0)
        axis.set_xlabel("modelled cents")
        axis.grid(alpha=0.25)
    axes.flat[0].set_ylabel("return in training, median of five runs")
    figure.legend(
        [Line2D([], [], color=colour, lw=2) for _, colour in STORY.values()],
        [label for label, _ in STORY.values()],
        frameon=False,
        ncols=4,
        loc="outside upper center",
    )
    saved(figure, RESULTS / "at_a_glance.png", 140)


def _while_all_run(values: Any, grid: Any, runs: Sequence[Found]) -> Any:
    """Returns the median until the first run has ended. After that, only slower runs would be left."""
    return np.where(grid <= min(run["spent_usd"] for run in runs), values, np.nan)


def _title(name: str) -> str:
    """Returns the task's name on the page."""
    return {"halfcheetah": "HalfCheetah", "slow_hopper": "slow Hopper"}.get(name, name.capitalize())


def _label(rule: str, everything: Found) -> str:
    if rule == "fixed":
        return "fixed-24"
    settings = everything["chosen"].get(rule, "")
    return f"{rule} ({settings})" if settings and not rule.endswith(f"-{settings}") else rule


def _estimated(
    name: str, estimate: Callable[..., np.ndarray], scores: Mapping[str, Sequence[np.ndarray]]
) -> dict[str, dict[str, float]]:
    """Returns, by rule, the estimate of its samples under that name, and the interval. Deterministic."""
    state, found = np.random.RandomState(0), {}
    for rule, samples in scores.items():
        drawn = [
            [one[state.choice(len(one), len(one))] for one in samples] for _ in range(RESAMPLES)
        ]
        low, high = np.quantile(estimate(*map(np.array, zip(*drawn, strict=True))), (0.025, 0.975))
        found[rule] = {name: _short(estimate(*samples)), "low": _short(low), "high": _short(high)}
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    found = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in WORKLOADS
        if (RESULTS / f"{name}.json").exists()
    }
    found = {name: everything for name, everything in found.items() if everything["runs"]}
    for name, everything in found.items():
        draw_curves(name, everything)
    draw_cents(found)
    draw_story(found)
    (RESULTS / "analysis.json").write_text(
        json.dumps({name: analyse(everything) for name, everything in found.items()}, indent=1)
    )
    for name, everything in found.items():
        few = [rule for rule, runs in by_rule(everything["runs"]).items() if len(runs) < FEW_SEEDS]
        if few:
            print(
                f"{name}: fewer than {FEW_SEEDS} seeds of {', '.join(few)}: no claim may rest on these"
            )


if __name__ == "__main__":
    main()
