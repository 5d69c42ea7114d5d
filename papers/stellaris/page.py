r"""Writes the README here, on the claims of Stellaris that reproduce, and a picture of each workload.

    python -m papers.stellaris.page

Reads the results of `papers.stellaris.arms`. Estimates are interquartile means over seeds with 95 % intervals
(`runtime.show.estimates`). Nothing is judged on fewer than five seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, panels, saved
from benchmarks.pages import rendered, table
from benchmarks.provenance import ROOT
from papers.estimates import differences, excludes, number, over_seeds, text
from papers.stellaris.arms import ARMS, COMBINED, RESULTS, SEEDS, WORKLOADS, Workload, arms_of

PAGE = ROOT / "papers" / "stellaris" / "README.md"
BASELINE, CONTROL, FULL, NITRO, BOTH = "sync-4096", "sync-1024", "+truncation", *COMBINED
ROUNDS_COMPARED = 20
"""Arms are compared after this many rounds, the length of trainings in the authors' artifact."""
PUBLISHED_SAVING_PERCENT = 41.0
GPU_NODES_USD_PER_HOUR = 2 * 3.06 + 4.896
"""The paper's testbed as instances: two V100 (p3.2xlarge) and 128 cores of EPYC 7R13 (c6a.32xlarge), us-east-1."""
ALWAYS_ON = ", always-on servers"
COSTS = f"costs {PUBLISHED_SAVING_PERCENT:.0f} % less"
TITLES = {"hopper": "Hopper", "walker2d": "Walker2d", "humanoid": "Humanoid"}
WHAT = {
    "sync-4096": "one learner, minibatches of 4,096: the authors' baseline",
    "sync-1024": "one learner, minibatches of 1,024: a control with the number of gradients that the arms below apply",
    "async": "four learners, each gradient applied as it arrives",
    "+bound": "with the bound on staleness",
    "+rates": "with smaller steps for stale gradients",
    "+truncation": "with the cap on ratios: all of Stellaris",
    "nitro-sync": "`sync-1024` with Nitro's scaler: 8 to 32 actors",
    "nitro+stellaris": "`+truncation` with Nitro's scaler",
}

Run = Mapping[str, Any]
Runs = Mapping[str, Mapping[int, Run]]
"""By arm and seed."""
Bill = Callable[[Run, int], float]
"""Returns the cents of a run's first rounds."""


def read() -> dict[str, dict[str, Any]]:
    """Returns the results by workload.

    Raises:
        SystemExit: Some runs are missing.
    """
    everything = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in WORKLOADS}
    for name, found in everything.items():
        if missing := len(arms_of(name)) * len(SEEDS) - len(found["runs"]):
            raise SystemExit(
                f"{name}: {missing} runs are missing; `python -m papers.stellaris.arms {name}` makes them"
            )
    return everything


def by_arm(found: Mapping[str, Any]) -> Runs:
    """Groups runs by arm, in the order of the arms."""
    return {
        arm: {run["seed"]: run for run in found["runs"] if run["arm"] == arm}
        for arm in found["arms"]
    }


def evaluations(run: Run) -> dict[int, float]:
    """Returns the evaluated returns by the round of the policy."""
    rows = run["rows"]
    return {
        index: value
        for index, value in zip(
            rows["evaluation_round"], rows["evaluation_return_mean"], strict=True
        )
        if value is not None
    }


def final(run: Run) -> float:
    """Returns the return after the compared rounds."""
    return evaluations(run)[ROUNDS_COMPARED]


def seconds(run: Run, rounds: int = ROUNDS_COMPARED) -> float:
    """Returns the seconds of the first rounds."""
    return math.fsum(run["rows"]["priced_s"][:rounds])


def cents(run: Run, rounds: int = ROUNDS_COMPARED) -> float:
    """Returns the cents of the first rounds: functions by the millisecond, requests to the bucket."""
    return 100.0 * math.fsum(run["rows"]["priced_usd"][:rounds])


def cents_on_nodes(run: Run, rounds: int = ROUNDS_COMPARED) -> float:
    """Returns the same on the artifact's basis: the paper's machines run for all of the rounds, and are no faster."""
    return 100.0 * GPU_NODES_USD_PER_HOUR * seconds(run, rounds) / 3600.0


def rounds_to(run: Run, target_return: float) -> int | None:
    """Returns the rounds until an evaluation first reached the target; None if none did."""
    return min(
        (index for index, value in evaluations(run).items() if value >= target_return), default=None
    )


def cents_to(run: Run, target_return: float, bill: Bill) -> tuple[float, float]:
    """Returns the least and the most cents to the target: a run that missed it costs at least what it spent."""
    if (rounds := rounds_to(run, target_return)) is None:
        return bill(run, run["rounds"]), math.inf
    return bill(run, rounds), bill(run, rounds)


def saving(ours: float, theirs: float) -> float:
    """Returns the percentage of the dearer bill that the cheaper one saves; negative if theirs is cheaper."""
    return 100.0 * ((1.0 - ours / theirs) if ours <= theirs else (theirs / ours - 1.0))


def saving_to(ours: Run, theirs: Run, target_return: float, bill: Bill) -> tuple[float, float]:
    """Returns the least and the most that a run saves to the target. Misses count alike on both sides.

    If both missed it, no saving was seen.
    """
    (least, most), (their_least, their_most) = (
        cents_to(run, target_return, bill) for run in (ours, theirs)
    )
    if math.inf == most == their_most:
        return 0.0, 0.0
    return saving(most, their_least), saving(least, their_most)


def spending(runs: Iterable[Run], target_return: float, bill: Bill) -> str:
    """Returns what all seeds spent for each that reached the target."""
    bounds = [cents_to(run, target_return, bill) for run in runs]
    spent, hits = (
        math.fsum(least for least, _ in bounds),
        sum(most < math.inf for _, most in bounds),
    )
    return (
        f"{spent / hits:.1f} ({hits} of {len(bounds)})"
        if hits
        else f"none of {len(bounds)}, for {spent:.1f}"
    )


def paired(
    runs: Runs, ours: str, theirs: str, compare: Callable[[Run, Run], float]
) -> dict[str, Any]:
    """Estimates a comparison of two runs, paired by seed."""
    return over_seeds(compare(runs[ours][seed], runs[theirs][seed]) for seed in SEEDS)


def judged(saved: Mapping[str, Any]) -> str:
    """Judges whether a saving, in percent, is at least the published one."""
    if excludes(saved) < 1:
        return "not"
    return "reproduced" if saved["interval_high"] >= PUBLISHED_SAVING_PERCENT else "partly"


def judged_between(least: Mapping[str, Any], most: Mapping[str, Any]) -> tuple[str, str]:
    """Judges a saving of which bounds are known, and describes it. Undecided if the bounds differ in their verdict."""
    by_least, by_most = judged(least), judged(most)
    if least == most:
        return by_least, text(least, 0, unit=" %")
    if by_least != "not":
        return by_least, f"at least {text(least, 0, unit=' %')}"
    if by_most == "not":
        return by_most, f"at most {text(most, 0, unit=' %')}"
    return "undecided", " to ".join(
        number(one["interquartile_mean"], ".0f") for one in (least, most)
    ) + " %"


def claims(runs: Runs, workload: Workload) -> dict[str, tuple[str, str]]:
    """Returns the paper's claims, each with a verdict and our result."""
    found = {}
    for which, bill in ((ALWAYS_ON, cents_on_nodes), ("", cents)):
        saved_cents = paired(runs, FULL, BASELINE, lambda a, b, bill=bill: saving(bill(a), bill(b)))
        found[f"{COSTS}: {ROUNDS_COMPARED} rounds{which}"] = judged_between(
            saved_cents, saved_cents
        )
        found[f"{COSTS}: to the target{which}"] = judged_between(
            *(
                paired(
                    runs,
                    FULL,
                    BASELINE,
                    lambda a, b, bill=bill, side=side: saving_to(
                        a, b, workload.target_return, bill
                    )[side],
                )
                for side in (0, 1)
            )
        )
    return found


def claims_table(everything: Mapping[str, tuple[Runs, Workload]]) -> str:
    """Returns all claims as Markdown, with a column for each workload."""
    found = {name: claims(*one) for name, one in everything.items()}
    return table(
        ["the paper's claim", *(TITLES[name] for name in found)],
        [
            [
                f"{claim}{' (under audit)' if 'to the target' in claim else ''}",
                *(f"**{one[claim][0]}**: {one[claim][1]}" for one in found.values()),
            ]
            for claim in next(iter(found.values()))
        ],
    )


def spending_table(everything: Mapping[str, tuple[Runs, Workload]]) -> str:
    """Returns the cents per seed that reached the target as Markdown, with a column for each workload."""
    return table(
        [
            "arm",
            *(f"{TITLES[name]}, {one.target_return:g}" for name, (_, one) in everything.items()),
        ],
        [
            [
                f"`{arm}`{which}",
                *(
                    spending(runs[arm].values(), one.target_return, bill)
                    for runs, one in everything.values()
                ),
            ]
            for which, bill in (
                (ALWAYS_ON, cents_on_nodes),
                (", functions by the millisecond", cents),
            )
            for arm in (FULL, BASELINE, CONTROL)
        ],
    )


def steps_table(everything: Mapping[str, Runs]) -> str:
    """Returns what each step from one arm to the next changes, as Markdown; a column for each workload."""
    arms = [arm for arm in ARMS if arm not in COMBINED]
    return table(
        ["step", *(TITLES[name] for name in everything)],
        [
            [
                f"`{before}` to `{after}`",
                *(
                    _effect(paired(runs, after, before, lambda a, b: final(a) - final(b)))
                    for runs in everything.values()
                ),
            ]
            for before, after in zip(arms, arms[1:], strict=False)
        ],
    )


def times_as_long(everything: Mapping[str, Runs]) -> str:
    """Returns how long the rounds take with several learners, beside one that applies the same number of gradients."""
    times = {
        name: paired(runs, "async", CONTROL, lambda a, b: seconds(a) / seconds(b))
        for name, runs in everything.items()
    }
    return ", ".join(f"{text(one, 2)} on {TITLES[name]}" for name, one in times.items())


def return_at(run: Run, level: float, quantity: Callable[[Run, int], float]) -> float:
    """Returns the evaluated return at a level of cents or seconds, interpolated linearly between evaluations."""
    found = evaluations(run)
    return float(np.interp(level, [quantity(run, index) for index in found], list(found.values())))


def combined(found: Mapping[str, Any]) -> str:
    """Returns the gain of Nitro's scaler with Stellaris' learners at equal dollars, as Markdown."""
    runs, arms = by_arm(found), [CONTROL, NITRO, FULL, BOTH]
    level = min(cents(run, run["rounds"]) for arm in arms for run in runs[arm].values())
    returns = {arm: [return_at(runs[arm][seed], level, cents) for seed in SEEDS] for arm in arms}
    gains = {arm: differences(returns[BOTH], returns[arm]) for arm in arms[:-1]}
    better, worse = (
        [_BESIDE[arm] for arm, one in gains.items() if excludes(one) == side] for side in (1, -1)
    )
    if len(better) == len(gains):
        sentence = "**The combination buys something**: it returns more than each part alone, and than without either."
    else:
        shown = [
            f"{word} than {' and '.join(arms)}"
            for word, arms in (("more", better), ("less", worse))
            if arms
        ]
        sentence = (
            f"**The combination returns {' but '.join(shown)}**; other differences could not be shown."
            if shown
            else "**The combination buys nothing that could be shown.**"
        )
    return f"{sentence}\n\n" + table(
        [f"Hopper, after {level:.2f} cents each", "return", "with both, more by"],
        [
            [
                f"`{arm}`: {WHAT[arm]}",
                _over(returns[arm], 0),
                text(gains[arm], 0, sign=True) if arm in gains else "",
            ]
            for arm in arms
        ],
    )


def section(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the page says of a workload."""
    return {
        "name": name,
        "title": TITLES[name],
        "workload": WORKLOADS[name],
        "date": found["date"],
        "commits": sorted({one for run in found["runs"] for one in run["commits"]}),
    }


def page(everything: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns papers/stellaris/README.md.

    Args:
        everything: Results by workload.
    """
    runs = {name: by_arm(found) for name, found in everything.items()}
    known = {name: (runs[name], WORKLOADS[name]) for name in everything}
    return rendered(
        Path(__file__).with_suffix(".md"),
        arms=WHAT,
        full=FULL,
        baseline=BASELINE,
        control=CONTROL,
        rounds_compared=ROUNDS_COMPARED,
        nodes_usd=GPU_NODES_USD_PER_HOUR,
        claims=claims_table(known),
        spending=spending_table(known),
        workloads=[section(name, found) for name, found in everything.items()],
        steps=steps_table(runs),
        times_as_long=times_as_long(runs),
        combined=combined(everything["hopper"]),
    )


def draw(runs: Runs, path: Path) -> None:
    """Draws evaluated returns by rounds and by seconds: the mean of the seeds, and their range.

    Dashed lines are the same arms with Nitro's scaler.
    """
    figure, (by_rounds, by_seconds) = panels(2, (12, 4.4), sharey=True)
    for arm, of_arm in runs.items():
        every, colour = list(of_arm.values()), _COLOURS[_WITHOUT_NITRO.get(arm, arm)]
        returns = np.array([list(evaluations(run).values()) for run in every])
        rounds = list(evaluations(every[0]))
        until_s = np.mean([[seconds(run, index) for index in rounds] for run in every], axis=0)
        for axes, x in ((by_rounds, rounds), (by_seconds, until_s)):
            axes.fill_between(x, returns.min(0), returns.max(0), color=colour, alpha=0.08, lw=0)
            axes.plot(
                x,
                returns.mean(0),
                "--" if arm in COMBINED else "-",
                color=colour,
                lw=1.6,
                label=f"{arm} ({len(every)})",
            )
    by_rounds.set(xlabel="round", ylabel="evaluated return")
    by_seconds.set_xlabel("priced seconds")
    by_rounds.legend(frameon=False, title="arm (seeds)")
    saved(figure, path)


def _over(values: Sequence[float], digits: int) -> str:
    return text(over_seeds(values), digits)


def _effect(more: Mapping[str, Any]) -> str:
    effect = {1: ", **returns more**", -1: ", **returns less**"}.get(excludes(more), "")
    return text(more, 0, sign=True) + effect


_WITHOUT_NITRO = {NITRO: CONTROL, BOTH: FULL}
_COLOURS = {
    "sync-4096": GREY,
    "sync-1024": "#222222",
    "async": ORANGE,
    "+bound": GREEN,
    "+rates": PURPLE,
    "+truncation": BLUE,
}
_BESIDE = {
    CONTROL: "without either",
    NITRO: "with Nitro's scaler alone",
    FULL: "with Stellaris' learners alone",
}


def main() -> None:
    """Writes the page and pictures from the results."""
    everything = read()
    for name, found in everything.items():
        draw(by_arm(found), RESULTS / f"{name}.png")
    PAGE.write_text(page(everything))


if __name__ == "__main__":
    main()
