"""``python -m papers.minionsrl``: records runs, and fits, trains, fine-tunes or shows MinionsRL's learned scheduler."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nitro_rl import train
from papers.minionsrl.scheduler.recordings import read_recording, read_recordings
from papers.minionsrl.scheduler.showing import (
    comparison_lines,
    fit_lines,
    scheduler_lines,
    spent_usd,
)
from papers.minionsrl.scheduler.surrogate import Surrogate, fit
from papers.minionsrl.scheduler.training import (
    LEARNING_RATES,
    MINIBATCHES,
    PlayRun,
    SchedulerLearner,
    compared,
    train_on_runs,
    train_on_surrogate,
)
from papers.pricing import pricing_of
from runtime.cli.arguments import not_negative, positive, say
from runtime.cli.main import run_command
from runtime.errors import ExperimentError, RunError
from runtime.experiment.schema import Experiment
from runtime.records.trust import load_trusted_experiment
from runtime.scaler.minions_settings import SUFFIX, scheduler_path
from runtime.scaler.saved_scheduler import Pricing, SavedScheduler, load_scheduler

_DESCRIPTION = """\
Train a scheduler for scaler.kind = minions, which chooses the number of actors of each round. Everything runs on this
machine. Dollars are priced by counts. A scheduler's file holds the cost of its training. See docs/guides/scheduler.md.

examples:
  python -m papers.minionsrl record experiments/hopper.yaml --runs 6 --out runs/recorded
  python -m papers.minionsrl fit runs/recorded --out surrogate.json
  python -m papers.minionsrl train surrogate.json --episodes 1000 --out mine.safetensors
  python -m papers.minionsrl train --real experiments/hopper.yaml --episodes 100 --out real.safetensors
  python -m papers.minionsrl finetune mine.safetensors experiments/walker2d.yaml --out walker.safetensors
  python -m papers.minionsrl show mine.safetensors
  python -m runtime train experiments/hopper.yaml --set scaler.kind=minions --set scaler.scheduler=mine.safetensors"""
_SEEDS_FROM = 10_000
"""Training uses other seeds than reported runs, which begin at an experiment's own seed."""
_SCHEDULE_ROUNDS = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code.

    Args:
        arguments: The arguments after the program's name; None for this process's own.
    """
    return run_command(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m papers.minionsrl",
        usage="%(prog)s COMMAND [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_DESCRIPTION,
    )
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", title="commands", prog="python -m papers.minionsrl"
    )

    def add(name: str, command: Any, summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        added.set_defaults(command=command)
        return added

    record = add(
        "record",
        _record,
        "train with a random number of actors in each round, so that a "
        "surrogate can be fitted to the results",
    )
    _add_experiment(record)
    record.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory of the runs (required)"
    )
    record.add_argument(
        "--runs",
        type=positive,
        default=6,
        metavar="N",
        help="runs, each with its own seed; runs already in DIR are kept (default: 6)",
    )

    fitting = add(
        "fit",
        _fit,
        "fit a surrogate to recorded runs: a model of a training, on which a scheduler learns "
        "in seconds",
    )
    fitting.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="directories of `record`; their bounds on actors may differ",
    )
    fitting.add_argument(
        "--out", type=Path, required=True, metavar="FILE.json", help="the surrogate (required)"
    )

    training = add(
        "train",
        _train,
        "train a scheduler on a surrogate; or, with --real and without a surrogate, on real runs",
    )
    training.add_argument(
        "surrogate", type=Path, nargs="?", metavar="SURROGATE.json", help="what `fit` wrote"
    )
    training.add_argument(
        "--real",
        type=Path,
        metavar="EXPERIMENT.yaml",
        help="train on real runs of this experiment instead, as the paper does",
    )
    _add_training(training, episodes=100)
    _add_overrides(training)
    training.add_argument(
        "--seed",
        type=not_negative,
        default=0,
        metavar="N",
        help="seed of the training (default: 0)",
    )
    training.add_argument(
        "--minibatch",
        type=int,
        choices=MINIBATCHES,
        default=2,
        help="rounds of a gradient step (default: 2)",
    )
    training.add_argument(
        "--learning-rate",
        type=float,
        choices=LEARNING_RATES,
        default=0.005,
        help="Adam's (default: 0.005, the paper's)",
    )

    finetune = add(
        "finetune",
        _finetune,
        "train a scheduler further on real runs, which may be of another task",
    )
    finetune.add_argument(
        "scheduler", metavar="SCHEDULER", help="its file, or a shipped one's name"
    )
    _add_experiment(finetune)
    _add_training(finetune, episodes=10)
    finetune.set_defaults(seed=0)

    show = add(
        "show", _show, "show what a scheduler was trained on, what that cost, and what it decides"
    )
    show.add_argument("scheduler", metavar="SCHEDULER", help="its file, or a shipped one's name")
    return parser


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.yaml",
        help="the experiment file; its scaler's bounds count, and it needs stop.target_return",
    )
    _add_overrides(parser)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one key of the experiment file; may be repeated (default: none)",
    )


def _add_training(parser: argparse.ArgumentParser, *, episodes: int) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.safetensors",
        help="the scheduler "
        "(required); real runs are kept in FILE.runs, from which a killed training continues",
    )
    parser.add_argument(
        "--episodes",
        type=positive,
        default=episodes,
        metavar="N",
        help=f"runs to train on; real runs of earlier calls count (default: {episodes})",
    )


def _record(options: argparse.Namespace) -> int:
    scaler = _loaded(options.experiment, options.set).scaler
    runs = []
    for number in range(1, options.runs + 1):
        path = options.out / f"run-{number:03d}"
        schedule = random_schedule(scaler.actors_min, scaler.actors_max, seed=number)
        _run(
            options.experiment,
            [*options.set, "scaler.kind=schedule", f"scaler.schedule={json.dumps(schedule)}"],
            _SEEDS_FROM + number,
            path,
        )
        runs.append(read_recording(path))
        say(
            f"{path}: {runs[-1].stop_reason}, {len(runs[-1].rows)} rounds, ${runs[-1].spent_usd:.4f}, "
            f"{runs[-1].seconds:.0f} s (by counts)"
        )
    say(
        f"{len(runs)} runs cost ${sum(run.spent_usd for run in runs):.4f} and "
        f"{sum(run.seconds for run in runs):.0f} s (by counts)"
    )
    return 0


def random_schedule(actors_min: int, actors_max: int, *, seed: int) -> list[tuple[int, int]]:
    """Returns ``scaler.schedule`` with another count in each round, the last one for all rounds after the table.

    A count is ⌊eᵘ⌋ with u uniform from ln I_min to ln (I_max + 1), so that each doubling is equally likely.
    """
    drawn = np.random.default_rng(seed).uniform(
        math.log(actors_min), math.log(actors_max + 1), _SCHEDULE_ROUNDS
    )
    return [(place, int(math.exp(one))) for place, one in enumerate(drawn, start=1)]


def _fit(options: argparse.Namespace) -> int:
    _check_writable(options.out, ".json")
    surrogate = fit(read_recordings(options.directories))
    surrogate.save(options.out)
    _say_all(fit_lines(surrogate))
    return 0


def _train(options: argparse.Namespace) -> int:
    if (options.surrogate is None) == (options.real is None):
        raise RunError("train: name either a surrogate or --real EXPERIMENT.yaml")
    if options.surrogate is not None and options.set:
        raise RunError(
            "--set: is for --real alone; a surrogate has the bounds that its runs were recorded with, by "
            "`record --set`"
        )
    if options.surrogate is not None:
        return _pretrain(options)
    scaler = _loaded(options.real, options.set).scaler
    learner = SchedulerLearner(
        scaler.actors_min,
        scaler.actors_max,
        minibatch_rounds=options.minibatch,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    return _on_runs(options, learner, options.real, "trained on real runs")


def _pretrain(options: argparse.Namespace) -> int:
    _check_writable(options.out, SUFFIX)
    surrogate = Surrogate.load(options.surrogate)
    learner = SchedulerLearner(
        surrogate.workload["actors_min"],
        surrogate.workload["actors_max"],
        minibatch_rounds=options.minibatch,
        learning_rate=options.learning_rate,
        seed=options.seed,
    )
    entry = train_on_surrogate(
        learner, surrogate, episodes=options.episodes, seed=options.seed, say=say
    )
    _save(learner.saved([entry], Pricing(**surrogate.pricing)), options.out)
    found = compared(surrogate, learner.policy, episodes=100, seed=options.seed)
    _say_all(comparison_lines(found, actors_min=learner.actors_min))
    return 0


def _finetune(options: argparse.Namespace) -> int:
    saved = load_scheduler(scheduler_path(options.scheduler))
    learner = SchedulerLearner(saved.actors_min, saved.actors_max)
    learner.take(saved)
    return _on_runs(options, learner, options.experiment, "fine-tuned on real runs", saved)


def _on_runs(
    options: argparse.Namespace,
    learner: SchedulerLearner,
    path: Path,
    phase: str,
    begun: SavedScheduler | None = None,
) -> int:
    _check_writable(options.out, SUFFIX)
    experiment = _loaded(path, options.set)
    lowest, highest = learner.actors_min, learner.actors_max
    if (experiment.scaler.actors_min, experiment.scaler.actors_max) != (lowest, highest):
        raise ExperimentError(
            f"{path}: scaler.actors_min = {experiment.scaler.actors_min} and scaler.actors_max = "
            f"{experiment.scaler.actors_max}; the scheduler chooses from {lowest} to {highest} actors, and is trained "
            f"with those: --set scaler.actors_min={lowest} --set scaler.actors_max={highest}"
        )
    try:
        pricing = pricing_of(experiment)
    except ExperimentError:
        if begun is None:
            raise
        pricing = begun.pricing
    entry = train_on_runs(
        learner,
        pricing,
        options.out.with_suffix(".runs"),
        _play_run(path, options.set),
        episodes=options.episodes,
        phase=phase,
        identity={
            "begun_as": begun.digest if begun else "",
            "seed": options.seed,
            **learner.settings,
            "environment_id": experiment.environment.id,
        },
        say=say,
    )
    _save(learner.saved([*(begun.history if begun else ()), entry], pricing), options.out)
    return 0


def _check_writable(path: Path, suffix: str) -> None:
    """Checks, before the work begins, that a file can be written there.

    Raises:
        RunError: It cannot.
    """
    if path.suffix != suffix:
        raise RunError(f"--out {path}: allowed: a name that ends in {suffix}")
    if os.path.isdir(path) or not os.path.isdir(path.parent) or not os.access(path.parent, os.W_OK):
        raise RunError(
            f"--out {path}: cannot be written; allowed: a file in a directory that is there and writable"
        )


def _play_run(path: Path, overrides: list[str]) -> PlayRun:
    def play_run(number: int, scheduler: Path, out: Path) -> None:
        _run(
            path,
            [
                *overrides,
                "scaler.kind=minions",
                f"scaler.scheduler={scheduler}",
                f"scaler.draws_seed={number}",
            ],
            _SEEDS_FROM + number,
            out,
        )

    return play_run


def _show(options: argparse.Namespace) -> int:
    _say_all(scheduler_lines(load_scheduler(scheduler_path(options.scheduler))))
    return 0


def _loaded(path: Path, overrides: Sequence[str]) -> Experiment:
    experiment = load_trusted_experiment(path, [*overrides, "scaler.kind=nitro"])
    if experiment.stop.target_return is None:
        raise ExperimentError(
            f"{path}: stop.target_return = null; a scheduler is trained to reach it: allowed is a "
            "number"
        )
    return experiment


def _run(path: Path, overrides: Sequence[str], seed: int, out: Path) -> None:
    """Trains the experiment once, or continues it."""
    train(path, out=out, overrides=[*overrides, f"seed={seed}"], resume=True, is_quiet=True)


def _save(saved: SavedScheduler, path: Path) -> None:
    saved.save(path)
    say(f"written      {path}: ${spent_usd(saved):.4f} went into it (by counts)")


def _say_all(lines: Any) -> None:
    for line in lines:
        say(line)


if __name__ == "__main__":
    sys.exit(main())
