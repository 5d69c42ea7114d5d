"""The command ``plan``: a run's time and cost in AWS in a few ways, or the fastest layout on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_experiment, add_parser, say
from runtime.errors import ExperimentError, RunError
from runtime.records.files import check_place
from runtime.records.trust import load_trusted_experiment
from runtime.show.terminal import duration, short_time

if TYPE_CHECKING:
    from runtime.cli.plan_prediction import MeasuredWork, Prediction
    from runtime.experiment.resolved import ResolvedExperiment

_COLUMNS = 80


def add_command(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    plan = add_parser(
        commands,
        "plan",
        needs="EXPERIMENT.yaml",
        summary="predict a run's time and dollars in AWS, or measure ways to run it here",
        description="Run a few rounds of an experiment here, and predict how long it takes in AWS and what it costs: "
        "as the file says, all on one instance, with 8, 32 or 64 actors as functions, and with functions of several "
        "memory sizes; and how long it takes here. Nothing is started in AWS. A vCPU counts as a core of this machine, "
        "at list prices. With --measure, nothing is predicted: rounds run on this machine, to find the number of "
        "instances (learner.kind = gmi) with which they are fastest.",
        examples=[
            "plan experiments/hopper.yaml",
            "plan experiments/hopper.yaml --set stop.max_steps=300000",
            "plan experiments/hopper.yaml --write memory.yaml",
            "plan experiments/hopper.yaml --measure --write fast.yaml",
        ],
    )
    add_experiment(plan)
    plan.add_argument(
        "--write",
        type=Path,
        metavar="FILE.yaml",
        help="write an experiment file that extends this one, with the memory size of the cheapest run, or the fastest "
        "layout (default: not)",
    )
    plan.add_argument(
        "--measure",
        action="store_true",
        help="measure layouts of instances on this machine, and choose the fastest (default: predict)",
    )
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    if options.write is not None:
        if options.write.exists():
            raise RunError(f"--write {options.write}: exists already; name another")
        check_place("--write", options.write, (".yaml", ".yml"))
    changes = _measured(options) if options.measure else _predicted(options)
    for change in changes:
        say(f"  --set '{change}'")
    if options.write is not None:
        _write(options, changes)
        say(f"written      {options.write}")
    return 0


def _predicted(options: argparse.Namespace) -> list[str]:
    """Prints predictions; returns the memory size of the cheapest run."""
    from runtime.cli.plan_measuring import changed, limits, measure, tried
    from runtime.cli.plan_prediction import (
        memories,
        predict_all,
        seconds_here,
        ways,
        work_of,
    )
    from runtime.money.estimate import rounds_of
    from runtime.money.prices import PRICES

    base = load_trusted_experiment(options.experiment, options.set)
    deployed = base.resolved(is_deployed=True)
    _check_measurable(deployed)
    has_functions = not deployed.is_on_learner
    if options.write is not None and not has_functions:
        raise RunError(
            f"--write {options.write}: fleet.kind = {deployed.fleet.kind} has no actor functions, whose memory is what "
            "is chosen; allowed: fleet.kind = auto | lambda"
        )
    here = changed(base, {"learner": {"kind": "instance"}, "fleet": {"kind": "local"}}, "plan")
    environment, fitted = tried(changed(here, limits(), "plan").resolved())
    say(f"running rounds of {options.experiment} here …")
    # Without lock-step, which functions do not have.
    alone = fitted.environment.model_copy(update={"vector": 1})
    measured = measure(fitted.model_copy(update={"environment": alone}), say)
    work = work_of(measured, fitted.actor.fragment_steps, environment.make_s)
    say(_folded(f"  {_work_text(work)}"))
    rounds, actors = rounds_of(deployed)
    say(
        _folded(
            f"{rounds:,} rounds of {round(actors)} actors x {deployed.actor.fragment_steps} steps, or as many "
            f"steps in other ways; from this machine's measured seconds, at list prices of {PRICES.region}, "
            f"{PRICES.as_of}"
        )
    )
    say("\n     time  of it start  dollars  way")
    predictions = predict_all(base, ways(deployed), work, environment, PRICES)
    for way in predictions:
        say(f"{duration(way.seconds):>9}  {duration(way.start_s):>11}  {way.usd:7.4f}  {way.name}")
    say(f"{duration(seconds_here(here.resolved(), work)):>9}  {'':>11}     free  this machine")
    say(
        _folded(
            "an instance counts at the on-demand price, also learner.market = spot, which costs less; a run ends at "
            f"budget.usd = ${base.budget.usd:g}"
            f"{', before it is done' if predictions[0].usd > base.budget.usd else ''}"
        )
    )
    if not has_functions:
        return []
    sizes = predict_all(base, memories(deployed, work.actor_mib), work, environment, PRICES)
    own_mib = deployed.actor.memory_mib
    best, reason = best_memory(sizes, own_mib)
    say("\n     memory   an actor  cents of it  the run: time  dollars")
    for size in sizes:
        say(
            f"{'*' if size.changes['actor']['memory_mib'] == best else ' '} {size.name:>9}  "
            f"{short_time(size.actor_s):>9}  {100 * size.actor_usd:11.6f}  {duration(size.seconds):>13}  "
            f"{size.usd:7.4f}"
        )
    say(
        _folded(
            f"{reason}; seconds ÷ the share of a vCPU that the memory buys, not measured in AWS"
        )
    )
    return [f"actor.memory_mib={best}"]


def best_memory(sizes: Sequence[Prediction], own_mib: int) -> tuple[int, str]:
    """Returns the memory to choose, in MiB, and why: the file's own, unless a run with another costs 2 % less."""
    usd = {size.changes["actor"]["memory_mib"]: size.usd for size in sizes}
    best = min(usd, key=usd.__getitem__)
    if own_mib in usd and usd[own_mib] <= 1.02 * usd[best]:
        return own_mib, "* the file's; no other makes the run 2 % cheaper"
    return best, "* cheapest run"


def _work_text(work: MeasuredWork) -> str:
    waits = f" of CPU and {short_time(work.wait_s)} of waiting" if work.wait_s else ""
    waits = " of CPU and an unknown time of waiting" if work.has_unknown_waits else waits
    return (
        f"a step {short_time(work.step_s)}{waits}, its training {short_time(work.sample_s)}, a cold start "
        f"{short_time(work.make_s)}, an actor's peak memory {work.actor_mib} MiB"
    )


def _folded(text: str) -> str:
    """Returns the text wrapped for a terminal; all lines but the first are indented."""
    return fill(text, _COLUMNS, subsequent_indent="  ")


def _check_measurable(deployed: ResolvedExperiment) -> None:
    """Refuses what cannot be predicted from rounds on this machine."""
    from runtime.experiment.instance_types import CPU_TYPES, has_gpu
    from runtime.learner import device_of

    for key, value, allowed in (
        ("algorithm.rounds", deployed.algorithm.rounds, ("synchronous",)),
        ("learner.kind", deployed.learner.kind, ("instance",)),
        ("fleet.kind", deployed.fleet.kind, ("lambda", "local")),
    ):
        if value not in allowed:
            raise ExperimentError(
                f"{key} = {value} cannot be predicted; allowed: {' | '.join(allowed)}"
            )
    wanted = deployed.learner.instance_types[0]
    if has_gpu(wanted) and device_of(deployed.learner.device) == "cpu":
        raise ExperimentError(
            f"learner.instance_types: {wanted} cannot be predicted, as this machine has no GPU to measure; allowed "
            f"here: types without one, such as --set learner.instance_types=[{CPU_TYPES[0]}]"
        )


def _measured(options: argparse.Namespace) -> list[str]:
    """Searches for the fastest layout on this machine; returns its settings."""
    from runtime.cli.plan_measuring import make_profiler, tried
    from runtime.gmi.gmi_settings import INSTANCES_MAX, GmiSettings
    from runtime.gmi.search import fastest, is_faster, layouts, search

    base = load_trusted_experiment(options.experiment, [*options.set, "learner.kind=gmi"])
    settings = base.learner
    assert isinstance(settings, GmiSettings), f"{settings.kind} has no layout"
    if settings.layout != "holistic":
        raise ExperimentError(
            f"learner.layout = {settings.layout}: --measure compares layouts that learn the same; allowed: holistic"
        )
    _, experiment = tried(base.resolved())
    has_worlds = experiment.environment.has_worlds
    actors, cores = experiment.scaler.most_actors, experiment.fleet.processes
    say(f"measuring layouts of {options.experiment} on {cores} cores …")
    profile = make_profiler(base, say)
    rows = layouts(actors, min(cores, INSTANCES_MAX), are_worlds=has_worlds)
    measured = search(profile, rows, settings.saturation)
    if not measured:
        raise RunError(f"--measure: no layout of {options.experiment} runs on this machine")
    instances, environments = fastest(measured)
    # Without instances, one learner and its actors. Worlds always have one.
    plain = (1, actors) if has_worlds else (0, 0)
    if (instances, environments) == plain or not is_faster(
        profile, (instances, environments), plain
    ):
        say(
            f"nothing is clearly faster here than {'one instance' if has_worlds else 'one learner'}"
        )
        return ["learner.instances=1"] if has_worlds else ["learner.kind=instance"]
    say(f"fastest here: {instances} instances x {environments} environments")
    return [
        "learner.kind=gmi",
        f"learner.instances={instances}",
        f"learner.environments={environments}",
    ]


def _write(options: argparse.Namespace, changes: list[str]) -> None:
    """Writes an experiment file that extends the planned one."""
    from runtime.experiment import yaml_text
    from runtime.experiment.loading import changed_keys

    overrides = [*options.set, *changes]
    # Overrides of the command line may contradict the changes.
    load_trusted_experiment(options.experiment, overrides)
    base = os.path.relpath(options.experiment.resolve(), options.write.resolve().parent)
    options.write.write_bytes(yaml_text.dump({"extends": base, **changed_keys(overrides)}).encode())
