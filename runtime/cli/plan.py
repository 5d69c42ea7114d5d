"""The command ``plan``: a run's time and cost in AWS in every sensible way, or the fastest layout on this machine."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_experiment, add_parser, positive, say, say_unused, seeds
from runtime.errors import ExperimentError, RunError
from runtime.records.files import check_place

if TYPE_CHECKING:
    from runtime.config.schema import Experiment

_STEPS = 1_000_000
_OF_PREDICTIONS = {"steps": None, "seeds": 1, "seconds": 30, "picture": None, "choose": "knee"}
"""Options that cannot be combined with --measure, and their defaults."""


def add_command(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    plan = add_parser(
        commands,
        "plan",
        needs="EXPERIMENT.yaml",
        summary="predict time and dollars of every sensible way to run an experiment, or measure ways to run it here",
        description="Sample an experiment's work here for half a minute, and predict how long it takes in AWS and what "
        "it costs: on several learners, with actors on Lambda (how many, memory, processor, warm or not) and with "
        "everything on one instance. Nothing is started in AWS. A vCPU counts as a core of this machine, at list "
        "prices; spot instances count at the on-demand price. With --measure, nothing is predicted: rounds run on this "
        "machine, to find the number of instances (learner.kind = gmi) with which they are fastest.",
        examples=[
            "plan experiments/hopper.yaml",
            "plan experiments/hopper.yaml --steps 300000 --seeds 10 --picture plan.png",
            "plan experiments/hopper.yaml --choose cheapest --write cheap.yaml",
            "plan experiments/hopper.yaml --measure --write fast.yaml",
        ],
    )
    add_experiment(plan)
    plan.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help=f"environment steps of a run (default: stop.max_steps, or {_STEPS:,})",
    )
    plan.add_argument(
        "--seeds",
        type=seeds,
        metavar="N",
        help="runs, one after the other on one deployment (default: 1)",
    )
    plan.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help="how long the work is sampled; every part at least once (default: 30)",
    )
    plan.add_argument(
        "--picture", type=Path, metavar="FILE.png", help="draw time against dollars (default: not)"
    )
    plan.add_argument(
        "--choose",
        choices=("cheapest", "fastest", "knee"),
        help="which one is printed as --set lines, and written (default: knee)",
    )
    plan.add_argument(
        "--write",
        type=Path,
        metavar="FILE.yaml",
        help="write the chosen one as an experiment file that extends this one (default: not)",
    )
    plan.add_argument(
        "--measure",
        action="store_true",
        help="measure layouts of instances on this machine, and choose the fastest (default: predict)",
    )
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    from runtime.cost.prices import PRICES
    from runtime.display.table import EventLines
    from runtime.planning.drawing import (
        draw,
        duration,
        folded,
        scatter_lines,
        short_time,
        table_lines,
    )
    from runtime.planning.prediction import NO_CACHE, Sample, picks, predict_all
    from runtime.planning.workload import WAIT, sample
    from runtime.records.downloaded import load_trusted_experiment
    from runtime.training.preflight import preflight, smallest_budget_usd

    _check_places(options)
    given = [f"--{name}" for name in _OF_PREDICTIONS if getattr(options, name) is not None]
    if options.measure and given:
        raise RunError(
            f"{', '.join(given)} with --measure: predictions alone have that; allowed: --set | --write"
        )
    if options.measure:
        return _measure(options)
    options = argparse.Namespace(
        **vars(options)
        | {
            name: default
            for name, default in _OF_PREDICTIONS.items()
            if getattr(options, name) is None
        }
    )
    base = load_trusted_experiment(options.experiment, options.set)
    say_unused(base)
    experiment = base.resolved()
    if experiment.algorithm.rounds == "asynchronous":
        raise ExperimentError(
            "algorithm.rounds = asynchronous cannot be planned; allowed: synchronous"
        )
    deployed = base.resolved(is_deployed=True)
    learner = experiment.learner
    if learner.is_external:
        raise ExperimentError(
            "learner.kind = external cannot be planned, as nobody knows the calls of a pool; make "
            "synth says what its deployment and its actors cost per hour"
        )
    if not (learner.kind == "function" or learner.has_instance):
        raise ExperimentError(
            f"learner.kind = {learner.kind} cannot be planned; allowed: instance | function | gmi"
        )
    if not learner.has_instance and experiment.cache.kind != "none":
        raise ExperimentError(
            f"cache.kind = {experiment.cache.kind} with learner.kind = {learner.kind} is not "
            "deployed, and so not planned; allowed: none, such as with --set cache.kind=none"
        )
    steps = options.steps or experiment.stop.max_steps or _STEPS
    environment, _ = preflight(experiment)
    say(f"sampling the work of {options.experiment} for {options.seconds} s on one core …")
    found = Sample(**sample(options.experiment, options.set, options.seconds))
    told = {
        unit: short_time(seconds) for unit, seconds in found.units.items() if unit in _UNIT_NAMES
    }
    if waited_s := found.units.get(WAIT):
        told["step_s"] += f" of CPU and {short_time(waited_s)} of waiting"
    say(folded("  " + ", ".join(f"{_UNIT_NAMES[unit]} {text}" for unit, text in told.items())))
    if found.has_unknown_waits:
        say(folded(str(EventLines().line("waits_unknown", {}))))
    predictions = predict_all(base, found, environment, PRICES, steps=steps, seeds=options.seeds)
    chosen = picks(predictions)
    many = f" with each of {options.seeds} seeds, one after the other" if options.seeds > 1 else ""
    say(
        folded(
            f"{len(predictions)} ways to {steps:,} steps{many}; by this machine's measured speed, at list prices of "
            f"{PRICES.region}, {PRICES.as_of}"
        )
        + "\n"
    )
    for line in [*table_lines(predictions, chosen), "", *scatter_lines(predictions, chosen), ""]:
        say(line)
    pick = chosen[options.choose]
    say(
        folded(
            f"{options.choose}: {duration(pick.seconds)}, ${pick.usd:.4f}; {duration(pick.start_s)} start, "
            f"{duration(pick.actors_s)} waiting for actors, {duration(pick.learner_s)} learner"
        )
    )
    for change in pick.way.overrides:
        say(f"  --set '{change}'")
    for one in predictions[1:]:
        if one.way.changes == NO_CACHE:
            sooner = duration(predictions[0].start_s - one.start_s)
            say(
                folded(
                    f"first deployment: --set cache.kind=none starts {sooner} sooner than the file as it is, and is "
                    "taken down sooner"
                )
            )
    round_usd = smallest_budget_usd(
        deployed,
        environment,
        PRICES,
        instance_type=learner.instance_types[0] if learner.has_instance else None,
    )
    say(
        folded(
            f"at most: budget.usd = ${experiment.budget.usd:g} for a run of the file as it is, as long as the "
            f"guard runs; its smallest round promises ${round_usd:.4f} of that"
        )
    )
    if options.write is not None:
        _write(options, base, pick.way.overrides)
        say(f"written      {options.write}")
    if options.picture is not None:
        draw(
            predictions,
            chosen,
            options.picture,
            title=f"{options.experiment.stem}, {steps:,} steps{many}",
        )
        say(f"picture      {options.picture}")
    return 0


def _measure(options: argparse.Namespace) -> int:
    """Searches for the fastest layout on this machine, and keeps it for later runs."""
    from runtime.backends.registry import make_backend
    from runtime.gmi.gmi_settings import INSTANCES_MAX
    from runtime.gmi.kept_results import keep
    from runtime.gmi.search import Point, estimate, measure_again, search_layout
    from runtime.gmi.settling import key_here
    from runtime.planning.drawing import folded
    from runtime.planning.layouts import changes_of, layout_lines
    from runtime.planning.profiling import make_profiler
    from runtime.records.downloaded import load_trusted_experiment
    from runtime.training.preflight import preflight

    base = load_trusted_experiment(options.experiment, [*options.set, "learner.kind=gmi"])
    say_unused(base)
    settings: Any = base.learner
    if base.environment.backend == "warp":
        raise ExperimentError(
            "--measure: environment.backend = warp is not searched, as there is no single learner to "
            "compare with; allowed: gymnasium, or learner.instances of your choice"
        )
    if settings.layout != "holistic":
        raise ExperimentError(
            f"learner.layout = {settings.layout} cannot be measured; allowed: holistic"
        )
    _, experiment = preflight(base.resolved())
    actors, steps, cores = (
        experiment.scaler.most_actors,
        experiment.actor.fragment_steps,
        experiment.fleet.processes,
    )
    say(f"measuring layouts of {options.experiment} on {cores} cores …")
    profile = make_profiler(base, make_backend=make_backend, tell=say)
    named = {
        name: value
        for name in ("instances", "environments")
        if (value := getattr(settings, name)) != "auto"
    }
    one = profile(0, 0)
    found = search_layout(
        profile,
        actors=actors,
        fragment_steps=steps,
        instances_max=min(cores, INSTANCES_MAX),
        **named,
    )
    alone, *points = measure_again(
        profile,
        [Point(0, 0, one, one.samples_per_s if one else 0.0), *found.points],
        partial(estimate, actors=actors, fragment_steps=steps),
    )
    found = replace(found, points=tuple(points))
    for line in layout_lines(found, round_samples=actors * steps):
        say(line)
    if found.layout is None:
        raise RunError(f"--measure: no layout of {options.experiment} runs on this machine")
    changes = changes_of(found.layout)
    if alone.profile is not None:
        say(folded(f"one learner, without instances: {alone.samples_per_s:,.0f} samples/s"))
    if (
        alone.profile is not None
        and found.best is not None
        and alone.samples_per_s >= found.best.samples_per_s
    ):
        say("fastest here: one learner, so no layout is kept")
        changes = ["learner.kind=instance"]
    elif named:
        say(
            folded(
                f"no layout is kept: {', '.join(f'learner.{name}' for name in named)} decided on it"
            )
        )
    elif problem := keep(key_here(experiment), found.layout):
        say(folded(problem))
    for change in changes:
        say(f"  --set '{change}'")
    if options.write is not None:
        _write(options, base, changes)
        say(f"written      {options.write}")
    return 0


def _check_places(options: argparse.Namespace) -> None:
    """Refuses unwritable files, before spending half a minute."""
    from runtime.report.figure import FORMATS

    if options.write is not None and options.write.exists():
        raise RunError(f"--write {options.write}: exists already; name another")
    if options.write is not None:
        check_place("--write", options.write, (".yaml", ".yml"))
    if options.picture is not None:
        check_place("--picture", options.picture, FORMATS)


_UNIT_NAMES = {
    "init_s": "cold start",
    "step_s": "a step",
    "sample_s": "a trained sample",
    "gradient_step_s": "a gradient step",
    "evaluated_step_s": "an evaluated step",
}


def _write(options: argparse.Namespace, planned: Experiment, changes: list[str]) -> None:
    """Writes an experiment file that extends the planned one."""
    from runtime.config import yaml_text
    from runtime.config.loading import changed_keys, experiment_from_tree
    from runtime.config.schema import without_keys

    base = os.path.relpath(options.experiment.resolve(), options.write.resolve().parent)
    written = experiment_from_tree(
        changed_keys(changes),
        source=str(options.write),
        base=planned.without_unused().model_dump(exclude_unset=True),
    )
    options.write.write_bytes(
        yaml_text.dump(
            {
                "extends": base,
                **without_keys(changed_keys([*options.set, *changes]), written.unused),
            }
        ).encode()
    )
