"""Nitro Fig. 4: boosting scores of ten rounds, by environment, by algorithm, and by run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREEN, ORANGE, dots, panels
from papers.estimates import over_seeds, spearman
from papers.nitro.boosting.summarise import signal_to_noise
from papers.nitro.figures.replays import OTHER_STREAMS, ROUNDS, measured, ratio, trainer
from runtime.ports.scaling import RoundView
from runtime.scaler.nitro import NitroScaler, NitroSettings

CASES: dict[str, tuple[str, ...]] = {
    "PPO on Hopper": ("experiments/paper/hopper-ppo.yaml",),
    "PPO on Humanoid": ("experiments/paper/humanoid-ppo.yaml",),
    "PPO on Walker2d": ("experiments/paper/walker2d-ppo.yaml",),
    "IMPALA on Hopper": ("experiments/paper/hopper-impact.yaml", "algorithm.kind=impala"),
    "IMPACT on Hopper": ("experiments/paper/hopper-impact.yaml",),
}
PANELS = {"environments": tuple(CASES)[:3], "algorithms": ("PPO on Hopper", *tuple(CASES)[3:])}
OTHERS = 2
"""Additional batches of the same policies, on which R is measured again."""


def measure(work: Path) -> dict[str, Any]:
    return summary(
        measured(work / "nitro_4.jsonl", f"{CASES} {OTHERS}", CASES, _training, key="case")
    )


def _training(case: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Returns R before each round: as in a run, on the samples of the policy's update, then on its other batches."""
    file, *settings = case
    training, samples = trainer(file, seed, *settings), None
    ratios: list[list[float | None]] = [[] for _ in range(1 + OTHERS)]
    for round_index in range(1, ROUNDS + 1):
        ratios[0].append(None if samples is None else ratio(training, samples))
        for number in range(1, 1 + OTHERS):
            anew = training.roll_out(round_index, 1, seed=OTHER_STREAMS + number)
            ratios[number].append(
                ratio(training, training.learner.samples(training.batch(anew)).arrays)
            )
        samples = training.update(training.roll_out(round_index, 1)).samples
    return {"ratios": ratios}


def scores(ratios: list[float | None], *, decays: bool = True) -> list[float]:
    """Returns Nitro's boosting score of each round.

    Args:
        decays: Whether later rounds have the lower weight d^k.
    """
    scaler = NitroScaler(NitroSettings(actors_min=1, actors_max=16))
    decided = [
        scaler.decide(RoundView(index, signals={"convexity_ratio": ratio}))
        for index, ratio in enumerate(ratios, 1)
    ]
    return [one.boosting_score / (1.0 if decays else one.decay_weight) for one in decided]


def summary(lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns scores over seeds, the similarity of two runs' scores, and of one run's scores on two other batches.

    Similarity is Spearman's ρ over the rounds from the second on, of scores without the decay, which all runs share.
    """
    cases = {}
    for case, rows in lines.items():
        of_runs = np.array([scores(row["ratios"][0]) for row in rows])
        alone = np.array([scores(row["ratios"][0], decays=False) for row in rows])[:, 1:]
        measured_anew = np.array(
            [[scores(one, decays=False) for one in row["ratios"][1:]] for row in rows]
        )[..., 1:]
        cases[case] = {
            "seeds": [row["seed"] for row in rows],
            "scores": of_runs.tolist(),
            "by_round": [over_seeds(one) for one in of_runs.T],
            "alike_between_runs": float(
                np.mean([spearman(alone[i], alone[j]) for i in range(len(rows)) for j in range(i)])
            ),
            "alike_within_a_run": over_seeds([spearman(*one[:2]) for one in measured_anew]),
            "signal_to_noise": signal_to_noise(
                [
                    [
                        [
                            float(np.log(ratio))
                            for batch in row["ratios"][1:]
                            if (ratio := batch[i]) is not None
                        ]
                        for i in range(ROUNDS)
                    ]
                    for row in rows
                ]
            ),
        }
    return {"cases": cases, "lines": [line for rows in lines.values() for line in rows]}


def draw(data: dict[str, Any]) -> Any:
    """Draws scores over seeds by environment and by algorithm, of three runs, and of one run on three batches."""
    cases, rounds = data["cases"], np.arange(1, ROUNDS + 1)
    figure, grid = panels(2, (11, 7.6), 2, sharey=True)
    columns = grid.flat
    colours = (BLUE, ORANGE, GREEN)
    for axes, (what, names) in zip(columns, PANELS.items(), strict=False):
        for shift, (name, colour) in enumerate(zip(names, colours, strict=True)):
            dots(
                axes,
                rounds + 0.14 * (shift - 1),
                cases[name]["by_round"],
                color=colour,
                label=name,
                ms=4,
            )
        axes.set_title(f"By {what[:-1]}: five seeds, 95 % intervals")
        axes.legend(frameon=False, fontsize=9)
    hopper = [line for line in data["lines"] if line["case"] == PANELS["environments"][0]]
    for line, colour in zip(hopper[:3], colours, strict=True):
        columns[2].plot(
            rounds,
            scores(line["ratios"][0]),
            "o-",
            ms=4,
            color=colour,
            label=f"seed {line['seed']}",
        )
    for number, colour in enumerate(colours):
        columns[3].plot(
            rounds,
            scores(hopper[0]["ratios"][number]),
            "o-",
            ms=4,
            color=colour,
            label="its own batch" if number == 0 else f"another batch, {number}",
        )
    for axes, title in zip(
        grid[1], ("By run: PPO on Hopper", "One run (seed 0), R on other samples"), strict=True
    ):
        axes.set_title(title)
        axes.legend(frameon=False, fontsize=9)
    for axes in columns:
        axes.set(xlabel="round", ylabel="boosting score", ylim=(-0.03, 1.4))
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    cases = data["cases"]
    alike = [one["alike_within_a_run"]["interquartile_mean"] for one in cases.values()]
    ratios = [one["signal_to_noise"]["signal_to_noise"] for one in cases.values()]
    return {
        "hopper": cases["PPO on Hopper"],
        "alike": (min(alike), max(alike)),
        "ratios": (min(ratios), max(ratios)),
        "status": "reproduced" if min(ratios) > 1.0 else "partly",
    }
