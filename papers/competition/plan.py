"""The competition's workloads and rules, and the candidate settings of each rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from papers.runs import Run

RESULTS = Path(__file__).parent / "results"
SEEDS = range(5)
"""Reported seeds."""
TUNING_SEEDS = (100, 101, 102)
"""Seeds for choosing a rule's settings. None of them is reported."""
DOUBLING = 10
"""Rounds until Hydrozoa doubles its actors, in the paper."""


@dataclass(frozen=True)
class Workload:
    """A task, and the end of its runs.

    Attributes:
        file: The experiment.
        target_return: Ends a run.
        steps_max: Ends a run that misses its target.
        levels_usd: Dollars at which returns are compared.
        settings_of: The workload on whose tuning seeds the rules' settings are chosen; "" = this one. Settings from
            another task show which rule to choose for a task without tuning.
        rules: The competing rules; () = all.
        step_s: The billed time of a step, in seconds of the measuring machine; None = as measured. Only the modelled
            machines get slower, so that a slow environment's bill takes less time to get.
        scheduler: The shipped scheduler that `minions` uses.
    """

    file: str
    target_return: float
    steps_max: int
    levels_usd: tuple[float, ...]
    settings_of: str = ""
    rules: tuple[str, ...] = ()
    step_s: float | None = None
    scheduler: str = "hopper"

    @property
    def settings(self) -> dict[str, object]:
        """Settings of all rules. One thread and one actor process give the same run and bill as more of them.

        The bill of every workload has a cache.
        """
        return {
            "stop.target_return": self.target_return,
            "stop.max_steps": self.steps_max,
            "evaluation.every_rounds": 5,
            "learner.threads": 1,
            "fleet.processes": 1,
            "cache.kind": "serverless",
        }


BEST = ("fixed", "fixed-8", "kungfu", "hydrozoa")
"""`fixed`, and the three cheapest rules on Hopper and Walker2d, not counting controls and pre-trained rules."""
WORKLOADS = {
    "hopper": Workload("experiments/hopper.yaml", 3000.0, 1_000_000, (0.001, 0.002, 0.003)),
    "walker2d": Workload(
        "experiments/walker2d-nitro.yaml",
        3000.0,
        1_000_000,
        (0.002, 0.004, 0.006),
        settings_of="hopper",
        scheduler="walker2d",
    ),
    "halfcheetah": Workload(
        "experiments/halfcheetah.yaml",
        1500.0,
        1_000_000,
        (0.002, 0.004, 0.006),
        settings_of="hopper",
        rules=BEST,
    ),
    "slow_hopper": Workload(
        "experiments/hopper.yaml",
        3000.0,
        1_000_000,
        (0.01, 0.02, 0.03),
        settings_of="hopper",
        rules=(*BEST, "noise-scale"),
        step_s=0.005,
    ),
}

SMALL, LARGE = {"actors_min": 4, "actors_max": 16}, {"actors_min": 8, "actors_max": 32}
WIDE = {"actors_min": 4, "actors_max": 32}
RULES: dict[str, dict[str, dict[str, object]]] = {
    "nitro": {"8 to 32": LARGE, "4 to 16": SMALL},
    "fixed": {
        "4": {"actors_fixed": 4},
        "8": {"actors_fixed": 8},
        "16": {"actors_fixed": 16},
        "24": {"actors_fixed": 24},
    },
    "fixed-8": {"8": {"kind": "fixed", "actors_fixed": 8}},
    "permuted": {},
    "kungfu": {"8 to 32": LARGE, "4 to 16": SMALL},
    "hydrozoa": {
        "8 to 32": {**LARGE, "doubling_rounds": 3 * DOUBLING},
        "4 to 16": {**SMALL, "doubling_rounds": 3 * DOUBLING},
        "as published": {**LARGE, "doubling_rounds": DOUBLING},
    },
    "minions-adapt": {"8 to 32": LARGE, "4 to 16": SMALL},
    "noise-scale": {"8 to 32": LARGE, "4 to 32": WIDE},
    "random": {"8 to 32": LARGE, "4 to 16": SMALL},
    "max": {"32": LARGE, "16": SMALL},
    "minions": {
        "drawn": {**WIDE, "scheduler_actions": "sampled"},
        "greedy": {**WIDE, "scheduler_actions": "greedy"},
    },
}
"""By rule, the settings from which tuning chooses. A single one needs no tuning.

A permuted run has the settings of the run that it permutes. `fixed-8` is the README's advice from before the
competition.
"""
REPEATED = "nitro"
"""The rule whose counts `permuted` permutes, for the same seed."""


def tuning_runs(workload: str, work: Path) -> Iterator[Run]:
    """Yields the runs for choosing settings, seed by seed."""
    for seed in TUNING_SEEDS:
        for rule, candidates in RULES.items():
            for candidate, settings in candidates.items() if len(candidates) > 1 else ():
                yield _run(workload, rule, candidate, seed, settings, work / "tuning")


def reported_runs(workload: str, work: Path, chosen: dict[str, str]) -> Iterator[Run]:
    """Yields the reported runs, seed by seed.

    Args:
        chosen: By rule, the candidate that tuning chose. A rule without one yields no run.
    """
    for seed in SEEDS:
        for rule in WORKLOADS[workload].rules or RULES:
            if (REPEATED if rule == "permuted" else rule) not in chosen:
                continue
            if rule == "permuted":
                recorded = work / "reported" / workload / REPEATED / str(seed)
                settings = RULES[REPEATED][chosen[REPEATED]]
                yield _run(
                    workload,
                    rule,
                    chosen[REPEATED],
                    seed,
                    {**settings, "recorded_run": str(recorded), "order_seed": seed},
                    work / "reported",
                    needs=recorded,
                )
            else:
                candidate = chosen[rule]
                yield _run(
                    workload, rule, candidate, seed, RULES[rule][candidate], work / "reported"
                )


def _run(
    workload: str,
    rule: str,
    candidate: str,
    seed: int,
    settings: dict[str, object],
    work: Path,
    *,
    needs: Path | None = None,
) -> Run:
    place = work / workload / rule
    if work.name == "tuning":
        place /= candidate.replace(" ", "-")
    if rule == "minions":
        settings = {**settings, "scheduler": WORKLOADS[workload].scheduler, "draws_seed": seed}
    return Run(
        WORKLOADS[workload].file,
        rule,
        candidate,
        seed,
        {
            **WORKLOADS[workload].settings,
            "seed": seed,
            **{f"scaler.{name}": value for name, value in {"kind": rule, **settings}.items()},
        },
        place / str(seed),
        needs,
        WORKLOADS[workload].step_s,
    )
