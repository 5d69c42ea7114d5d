"""Predicts time and dollars of a few ways to run an experiment in AWS, from rounds that ran on this machine.

All ways have the batch of the experiment file's rounds. A vCPU counts as a core of this machine, and the start is from
`runtime.money.estimate`. Evaluations run beside the training and count as free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.trial import TriedEnvironment
from runtime.cli.plan_measuring import MeasuredRounds, changed
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import has_gpu
from runtime.experiment.resolved import (
    ResolvedExperiment,
)
from runtime.experiment.schema import Experiment
from runtime.money.estimate import Ending, estimate, rounds_of, start
from runtime.money.model import PROVISIONED_BLOCK_S, vcpu_share
from runtime.money.prices import PriceTable
from runtime.money.work import ACTOR
from runtime.training.costs import make_cost_model
from runtime.training.preflight import fit

INVOKE_S = 0.02
"""From the learner's request to a warm function's first line, and back. **Modelled.**"""
ACTORS = (8, 32, 64)
MEMORIES_MIB = (512, 884, 1024, 1769)
"""Memory of a function: slightly more than a quarter of a vCPU, a half, the default, and one."""
Changes = Mapping[str, Mapping[str, Any]]
"""Keys of an experiment file that select a way, by section."""


@dataclass(frozen=True)
class MeasuredWork:
    """Measured work of an experiment.

    Attributes:
        step_s: CPU seconds of an actor's step, replayed ones among them.
        wait_s: Seconds that it waits for something other than a CPU.
        sample_s: Seconds of a round without its actors, for each step trained on.
        detect_s: Seconds of detection, while actors play.
        make_s: Seconds of an actor's cold start.
        actor_mib: Peak memory of an actor with the programs that it started, MiB.
        has_unknown_waits: Whether actors may have waited, for an unknown time.
    """

    step_s: float
    wait_s: float
    sample_s: float
    detect_s: float
    make_s: float
    actor_mib: int
    has_unknown_waits: bool = False


def work_of(measured: MeasuredRounds, fragment_steps: int, make_s: float) -> MeasuredWork:
    """Returns the work of measured rounds, whose actors played ``fragment_steps`` each, one at a time."""
    rows = measured.rows
    steps = [fragment_steps + (row.replayed_steps or 0) / row.actors_billed for row in rows]
    # Medians, as the last round also waits for an evaluation.
    return MeasuredWork(
        step_s=median(
            (row.actor_cpu_s_mean or 0.0) / count for row, count in zip(rows, steps, strict=True)
        ),
        wait_s=median(
            (row.actors_waited_s or 0.0) / row.actors_billed / count
            for row, count in zip(rows, steps, strict=True)
        ),
        sample_s=median((row.round_s - row.collect_s) / row.env_steps for row in rows),
        detect_s=median(row.detect_s or 0.0 for row in rows),
        make_s=make_s,
        actor_mib=measured.actor_mib,
        has_unknown_waits=any(row.actors_waited_s is None for row in rows),
    )


@dataclass(frozen=True)
class Prediction:
    """A way's predicted time and cost.

    Attributes:
        name: The way, for people.
        changes: What selects it.
        seconds: From ``make deploy``'s first billed second to the end.
        start_s: Its part until training begins.
        usd: Total cost, including the start.
        actor_s: Seconds of one actor.
        actor_usd: Cost of one actor.
    """

    name: str
    changes: Changes
    seconds: float
    start_s: float
    usd: float
    actor_s: float
    actor_usd: float


def ways(experiment: ResolvedExperiment) -> Iterator[tuple[str, Changes]]:
    """Yields names and changes of the ways of an experiment resolved for a deployment, the file's own first."""
    yield "the file as it is", {}
    yield "the file without a cache", {"cache": {"kind": "none"}}
    yield f"all on one {experiment.learner.instance_types[0]}", {"fleet": {"kind": "local"}}
    batch = round(experiment.scaler.mean_actors * experiment.actor.fragment_steps)
    for count in ACTORS:
        steps = max(1, batch // count)
        scaler = {"kind": "fixed", "actors_fixed": count}
        name = f"functions: {count} actors x {steps} steps"
        actor = {"fragment_steps": steps}
        yield name, {"scaler": scaler, "actor": actor, "fleet": {"kind": "auto"}}


def memories(experiment: ResolvedExperiment, actor_mib: int) -> Iterator[tuple[str, Changes]]:
    """Yields memory sizes of the experiment's actor functions that hold an actor, its own among them."""
    for memory_mib in sorted({*MEMORIES_MIB, experiment.actor.memory_mib}):
        if memory_mib >= actor_mib:
            yield f"{memory_mib:,} MiB", {"actor": {"memory_mib": memory_mib}}


def predict_all(
    base: Experiment,
    ways: Iterator[tuple[str, Changes]],
    work: MeasuredWork,
    environment: TriedEnvironment,
    prices: PriceTable,
) -> list[Prediction]:
    """Predicts ways that may be deployed and differ from each other.

    Args:
        base: The experiment in its file.
        ways: Names and changes.
        work: Its measured work.
        environment: Its environment.
        prices: Prices for all parts.
    """
    by_settings: dict[str, Prediction] = {}
    for name, changes in ways:
        try:
            experiment = changed(base, changes, name).resolved(is_deployed=True)
            fitted = fit(experiment, environment)
        except ExperimentError:
            if not changes:
                raise
            continue
        by_settings.setdefault(
            experiment.to_yaml(), predict(name, changes, fitted, work, environment, prices)
        )
    return list(by_settings.values())


def seconds_here(experiment: ResolvedExperiment, work: MeasuredWork) -> float:
    """Returns the seconds of an experiment's rounds on this machine, for which it is resolved."""
    return _rounds_s(
        experiment, work, experiment.actor.fragment_steps * (work.step_s + work.wait_s)
    )


def _rounds_s(experiment: ResolvedExperiment, work: MeasuredWork, actor_s: float) -> float:
    """Returns the seconds of all rounds, without cold starts."""
    rounds, actors = rounds_of(experiment)
    # Functions play at the same time, and a process one actor after the other.
    turns = math.ceil(actors / experiment.fleet.processes)
    play_s = turns * actor_s if experiment.fleet.kind == "local" else actor_s + INVOKE_S
    learn_s = actors * experiment.actor.fragment_steps * work.sample_s
    return rounds * (max(play_s, work.detect_s) + learn_s)


def predict(
    name: str,
    changes: Changes,
    experiment: ResolvedExperiment,
    work: MeasuredWork,
    environment: TriedEnvironment,
    prices: PriceTable,
) -> Prediction:
    """Predicts one way; see `predict_all`.

    Args:
        experiment: With the way's changes, resolved for a deployment.
    """
    actor = experiment.actor
    is_local = experiment.is_on_learner
    model = make_cost_model(experiment, environment.spaces, prices, is_deployed=True)
    hourly = estimate(experiment, prices, Ending(0.0, 0.0))
    begins = start(
        hourly,
        has_cache=experiment.has_elasticache,
        is_warm=actor.provisioned > 0,
        has_gpu=has_gpu(experiment.learner.instance_types[0]),
        has_function=not is_local,
    )
    rounds, actors = rounds_of(experiment)
    share = 1.0 if is_local else vcpu_share(actor.memory_mib)
    # A process here mostly still has the episode that its actor continues.
    replayed_steps = 0.0 if is_local else experiment.trial.replayed_steps(actor.fragment_steps)
    actor_s = (actor.fragment_steps + replayed_steps) * (work.step_s / share + work.wait_s)
    cold_s = 0.0 if is_local or actor.provisioned else work.make_s / share
    actor_usd = 0.0
    if not is_local:
        function = model.roles[ACTOR]
        actor_usd = function.usd(
            is_provisioned=actor.provisioned > 0,
            billed_s=actor_s,
            # Weights and a trajectory; open episodes are small, if there are any.
            traffic_bytes=function.traffic_bytes_max - 2 * EPISODE_BYTES_MAX,
        )
    trained_s = cold_s + _rounds_s(experiment, work, actor_s)
    blocks = math.ceil(trained_s / PROVISIONED_BLOCK_S) if actor.provisioned else 0
    usd = (
        begins.usd
        + model.standing(trained_s, blocks=blocks).usd
        + rounds * (model.ledger_usd + actors * actor_usd)
    )
    if cold_s:
        usd += actors * model.roles[ACTOR].usd(
            is_provisioned=False, billed_s=cold_s, traffic_bytes=0
        )
    return Prediction(
        name, changes, begins.expected_s + trained_s, begins.expected_s, usd, actor_s, actor_usd
    )
