"""``python -m papers.minionsrl``: trains, fine-tunes or shows MinionsRL's learned scheduler."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nitro_rl import train
from papers.minionsrl.showing import scheduler_lines, spent_usd
from papers.minionsrl.training import PlayRun, SchedulerLearner, train_on_runs
from papers.pricing import pricing_of
from runtime.cli.arguments import not_negative, positive, say
from runtime.cli.main import run_command
from runtime.errors import ExperimentError, RunError
from runtime.experiment.schema import Experiment
from runtime.records.trust import load_trusted_experiment
from runtime.scaler.minions_settings import SUFFIX, scheduler_path
from runtime.scaler.saved_scheduler import SavedScheduler, load_scheduler

_DESCRIPTION = """\
Train a scheduler for scaler.kind = minions, which chooses the number of actors of each round. Everything runs on this
machine. Dollars are priced by counts. A scheduler's file holds the cost of its training. See docs/guides/scheduler.md.

examples:
  python -m papers.minionsrl train experiments/paper/hopper-minionsrl.yaml --out mine.safetensors
  python -m papers.minionsrl train OTHER.yaml --from mine.safetensors --episodes 10 --out other.safetensors
  python -m papers.minionsrl show mine.safetensors"""
_SEEDS_FROM = 10_000
"""Training uses other seeds than reported runs, which begin at an experiment's own seed."""


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
    training = commands.add_parser(
        "train",
        help="train a scheduler on real runs of an experiment",
        description="Train a scheduler on real runs of an experiment.",
    )
    training.set_defaults(command=_train)
    training.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.yaml",
        help="the experiment file; its scaler's bounds count, and it needs stop.target_return",
    )
    training.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one key of the experiment file; may be repeated (default: none)",
    )
    training.add_argument(
        "--from",
        dest="begun",
        metavar="SCHEDULER",
        help="a scheduler's file, or a shipped one's name, to train further; it may be of another task "
        "(default: a new one)",
    )
    training.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.safetensors",
        help="the scheduler "
        "(required); runs are kept in FILE.runs, from which a killed training continues",
    )
    training.add_argument(
        "--episodes",
        type=positive,
        default=100,
        metavar="N",
        help="runs to train on; those of earlier calls count (default: 100, the paper's)",
    )
    training.add_argument(
        "--seed",
        type=not_negative,
        default=0,
        metavar="N",
        help="seed of the training (default: 0)",
    )
    show = commands.add_parser(
        "show",
        help="show what a scheduler was trained on, what that cost, and what it decides",
        description="Show what a scheduler was trained on, what that cost, and what it decides.",
    )
    show.set_defaults(command=_show)
    show.add_argument("scheduler", metavar="SCHEDULER", help="its file, or a shipped one's name")
    return parser


def _train(options: argparse.Namespace) -> int:
    _check_writable(options.out)
    experiment = _loaded(options.experiment, options.set)
    begun = load_scheduler(scheduler_path(options.begun)) if options.begun else None
    learner = _learner(options, experiment, begun)
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
        _play_run(options.experiment, options.set),
        episodes=options.episodes,
        identity={
            "begun_as": begun.digest if begun else "",
            "scheduler_seed": options.seed,
            "environment_id": experiment.environment.id,
        },
        say=say,
    )
    saved = learner.saved([*(begun.history if begun else ()), entry], pricing)
    saved.save(options.out)
    say(f"written      {options.out}: ${spent_usd(saved):.4f} went into it (by counts)")
    return 0


def _show(options: argparse.Namespace) -> int:
    for line in scheduler_lines(load_scheduler(scheduler_path(options.scheduler))):
        say(line)
    return 0


def _check_writable(path: Path) -> None:
    """Checks, before the work begins, that a scheduler can be written there.

    Raises:
        RunError: It cannot.
    """
    if path.suffix != SUFFIX:
        raise RunError(f"--out {path}: allowed: a name that ends in {SUFFIX}")
    if os.path.isdir(path) or not os.path.isdir(path.parent) or not os.access(path.parent, os.W_OK):
        raise RunError(
            f"--out {path}: cannot be written; allowed: a file in a directory that is there and writable"
        )


def _loaded(path: Path, overrides: Sequence[str]) -> Experiment:
    experiment = load_trusted_experiment(path, [*overrides, "scaler.kind=nitro"])
    if experiment.stop.target_return is None:
        raise ExperimentError(
            f"{path}: stop.target_return = null; a scheduler is trained to reach it: allowed is a "
            "number"
        )
    return experiment


def _learner(
    options: argparse.Namespace, experiment: Experiment, begun: SavedScheduler | None
) -> SchedulerLearner:
    lowest = experiment.scaler.actors_min
    highest = experiment.scaler.actors_max
    learner = SchedulerLearner(lowest, highest, seed=options.seed)
    if begun is None:
        return learner
    if (begun.actors_min, begun.actors_max) != (lowest, highest):
        raise ExperimentError(
            f"{options.experiment}: scaler.actors_min = {lowest} and scaler.actors_max = {highest}; the scheduler "
            f"chooses from {begun.actors_min} to {begun.actors_max} actors, and is trained with those: --set "
            f"scaler.actors_min={begun.actors_min} --set scaler.actors_max={begun.actors_max}"
        )
    learner.take(begun)
    return learner


def _play_run(path: Path, overrides: Sequence[str]) -> PlayRun:
    def play_run(number: int, scheduler: Path, out: Path) -> None:
        train(
            path,
            out=out,
            overrides=[
                *overrides,
                "scaler.kind=minions",
                f"scaler.scheduler={scheduler}",
                f"seed={_SEEDS_FROM + number}",
            ],
            resume=True,
            is_quiet=True,
        )

    return play_run


if __name__ == "__main__":
    sys.exit(main())
