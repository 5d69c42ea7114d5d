"""The commands ``scheduler record``, ``fit``, ``train``, ``finetune`` and ``show``: MinionsRL's learned scheduler."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_parser, not_negative, positive, say, say_unused
from runtime.errors import ExperimentError, RunError

if TYPE_CHECKING:
    from runtime.config.schema import Experiment
    from runtime.scaler.saved_scheduler import SavedScheduler
    from runtime.scheduler.training import PlayRun, SchedulerLearner

_DESCRIPTION = """\
Train a scheduler for scaler.kind = minions, which chooses the number of actors of each round. Everything runs on this
machine; dollars are modelled, and those of a scheduler's training are kept in its file. docs/guides/scheduler.md tells
more.

examples:
  python -m runtime scheduler record experiments/hopper.yaml --runs 6 --out runs/recorded
  python -m runtime scheduler fit runs/recorded --out surrogate.json
  python -m runtime scheduler train surrogate.json --episodes 1000 --out mine.safetensors
  python -m runtime scheduler train --real experiments/hopper.yaml --episodes 100 --out real.safetensors
  python -m runtime scheduler finetune mine.safetensors experiments/walker2d.yaml --out walker.safetensors
  python -m runtime scheduler show mine.safetensors
  python -m runtime train experiments/hopper.yaml --set scaler.kind=minions --set scaler.scheduler=mine.safetensors"""
_SEEDS_FROM = 10_000
"""Training takes other seeds than runs that are reported, which begin at an experiment's own."""


def add_command(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
    scheduler = commands.add_parser(
        "scheduler", help="record, fit, train, fine-tune or show a learned scheduler of actors",
        usage="%(prog)s COMMAND [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter, description=_DESCRIPTION)
    kinds = scheduler.add_subparsers(required=True, metavar="COMMAND", title="commands",
                                     prog="python -m runtime scheduler")
    record = add_parser(
        kinds, "record", needs="EXPERIMENT.yaml --out DIR",
        summary="train with counts that are drawn anew in each round",
        description="Train with numbers of actors that are drawn anew in each round, so that a surrogate can be "
        "fitted to what came out.",
        examples=["scheduler record experiments/hopper.yaml --runs 6 --out runs/recorded"])
    _add_experiment(record)
    record.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the runs (required)")
    record.add_argument("--runs", type=positive, default=6, metavar="N", help="runs, each of its own seed; those that "
                        "DIR holds already are kept (default: 6)")
    record.set_defaults(command=_record)

    fit = add_parser(
        kinds, "fit", needs="DIR [DIR ...] --out FILE.json", summary="fit a surrogate to recorded runs",
        description="Fit a surrogate to recorded runs: a model of a training, on which a scheduler learns in seconds.",
        examples=["scheduler fit runs/recorded --out surrogate.json"])
    fit.add_argument("directories", type=Path, nargs="+", metavar="DIR", help="what `scheduler record` has written; "
                     "what was recorded between different bounds may be taken together")
    fit.add_argument("--out", type=Path, required=True, metavar="FILE.json", help="the surrogate (required)")
    fit.set_defaults(command=_fit)

    train = add_parser(
        kinds, "train", needs="SURROGATE.json --out FILE.safetensors",
        summary="train a scheduler, on a surrogate or on real runs",
        description="Train a scheduler on a surrogate; or, with --real and without a surrogate, on real runs.",
        examples=["scheduler train surrogate.json --episodes 1000 --out mine.safetensors",
                  "scheduler train --real experiments/hopper.yaml --episodes 100 --out real.safetensors"])
    train.add_argument("surrogate", type=Path, nargs="?", metavar="SURROGATE.json", help="what `scheduler fit` wrote")
    train.add_argument("--real", type=Path, metavar="EXPERIMENT.yaml", help="train on real runs of this experiment "
                       "instead, as the paper does")
    _add_training(train, episodes=100)
    train.add_argument("--seed", type=not_negative, default=0, metavar="N", help="of the training (default: 0)")
    train.add_argument("--minibatch", type=int, choices=(1, 2, 4), default=2, help="rounds of a gradient step "
                       "(default: 2)")
    train.add_argument("--learning-rate", type=float, choices=(0.001, 0.005, 0.01), default=0.005, help="Adam's "
                       "(default: 0.005, the paper's)")
    train.set_defaults(command=_train)

    finetune = add_parser(
        kinds, "finetune", needs="SCHEDULER EXPERIMENT.yaml --out FILE.safetensors",
        summary="train a scheduler further on real runs, of another task, too",
        description="Train a scheduler further on real runs, which may be of another task.",
        examples=["scheduler finetune mine.safetensors experiments/walker2d.yaml --out walker.safetensors"])
    finetune.add_argument("scheduler", metavar="SCHEDULER", help="its file, or a shipped one's name")
    _add_experiment(finetune)
    _add_training(finetune, episodes=10, has_overrides=False)
    finetune.set_defaults(command=_finetune, seed=0)

    show = add_parser(
        kinds, "show", needs="SCHEDULER",
        summary="show what a scheduler was trained on, what that cost, and what it decides",
        description="Show what a scheduler was trained on, what that cost, and what it decides.",
        examples=["scheduler show mine.safetensors", "scheduler show hopper --run runs/hopper"])
    show.add_argument("scheduler", metavar="SCHEDULER", help="its file, or a shipped one's name")
    show.add_argument("--run", type=Path, metavar="DIR", help="also what it would have decided in this run")
    show.set_defaults(command=_show)


def _add_experiment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file; its scaler's "
                        "bounds count, and it needs stop.target_return")
    _add_overrides(parser)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
                        help="override one key of the experiment file; may be repeated (default: none)")


def _add_training(parser: argparse.ArgumentParser, *, episodes: int, has_overrides: bool = True) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors", help="the scheduler "
                        "(required); real runs are kept in FILE.runs, from which a killed training goes on")
    parser.add_argument("--episodes", type=positive, default=episodes, metavar="N",
                        help=f"runs to train on; of real ones, those of earlier calls count (default: {episodes})")
    if has_overrides:
        _add_overrides(parser)


def _record(options: argparse.Namespace) -> int:
    from runtime.scheduler.recordings import read_recording

    _loaded(options.experiment, options.set)
    runs = []
    for number in range(1, options.runs + 1):
        path = options.out / f"run-{number:03d}"
        _run(options.experiment, [*options.set, "scaler.kind=random", f"scaler.draws_seed={number}"],
             _SEEDS_FROM + number, path)
        runs.append(read_recording(path))
        say(f"{path}: {runs[-1].stop_reason}, {len(runs[-1].rows)} rounds, ${runs[-1].spent_usd:.4f}, "
            f"{runs[-1].modelled_s:.0f} s (modelled)")
    say(f"{len(runs)} runs cost ${sum(run.spent_usd for run in runs):.4f} and "
        f"{sum(run.modelled_s for run in runs):.0f} s (modelled)")
    return 0


def _fit(options: argparse.Namespace) -> int:
    from runtime.scheduler.recordings import read_recordings
    from runtime.scheduler.showing import fit_lines
    from runtime.scheduler.surrogate import fit

    _check_writable(options.out, ".json")
    surrogate = fit(read_recordings(options.directories))
    surrogate.save(options.out)
    _say_all(fit_lines(surrogate))
    return 0


def _train(options: argparse.Namespace) -> int:
    from runtime.scheduler.training import SchedulerLearner

    if (options.surrogate is None) == (options.real is None):
        raise RunError("scheduler train: name either a surrogate or --real EXPERIMENT.yaml")
    if options.surrogate is not None:
        return _pretrain(options)
    scaler = _loaded(options.real, options.set).scaler
    learner = SchedulerLearner(scaler.actors_min, scaler.actors_max, minibatch_rounds=options.minibatch,
                               learning_rate=options.learning_rate, seed=options.seed)
    return _on_runs(options, learner, options.real, "trained on real runs", ())


def _pretrain(options: argparse.Namespace) -> int:
    from runtime.scaler.shipped import SUFFIX
    from runtime.scheduler.showing import comparison_lines
    from runtime.scheduler.surrogate import Surrogate
    from runtime.scheduler.training import compared, fresh_learner, train_on_surrogate

    _check_writable(options.out, SUFFIX)
    surrogate = Surrogate.load(options.surrogate)
    learner = fresh_learner(surrogate.workload, minibatch_rounds=options.minibatch,
                            learning_rate=options.learning_rate, seed=options.seed)
    entry = train_on_surrogate(learner, surrogate, episodes=options.episodes, seed=options.seed, say=say)
    _save(learner.saved([entry]), options.out)
    found = compared(surrogate, learner.policy, episodes=100, seed=options.seed)
    _say_all(comparison_lines(found, actors_min=learner.actors_min))
    return 0


def _finetune(options: argparse.Namespace) -> int:
    from runtime.scaler.saved_scheduler import load_scheduler
    from runtime.scheduler.training import SchedulerLearner

    saved = load_scheduler(options.scheduler)
    learner = SchedulerLearner(saved.actors_min, saved.actors_max)
    learner.take(saved)
    return _on_runs(options, learner, options.experiment, "fine-tuned on real runs", saved.history, saved.digest)


def _on_runs(options: argparse.Namespace, learner: SchedulerLearner, path: Path, phase: str, history: Sequence[Any],
             begun_as: str = "") -> int:
    from runtime.scaler.shipped import SUFFIX
    from runtime.scheduler.training import train_on_runs

    _check_writable(options.out, SUFFIX)
    experiment = _loaded(path, options.set)
    lowest, highest = learner.actors_min, learner.actors_max
    if (experiment.scaler.actors_min, experiment.scaler.actors_max) != (lowest, highest):
        raise ExperimentError(
            f"{path}: scaler.actors_min = {experiment.scaler.actors_min} and scaler.actors_max = "
            f"{experiment.scaler.actors_max}; the scheduler chooses from {lowest} to {highest} actors, and is trained "
            f"with those: --set scaler.actors_min={lowest} --set scaler.actors_max={highest}")
    entry = train_on_runs(
        learner, options.out.with_suffix(".runs"), _play_run(path, options.set), episodes=options.episodes,
        phase=phase, identity={"begun_as": begun_as, "seed": options.seed, **learner.settings,
                               "environment_id": experiment.environment.id}, say=say)
    _save(learner.saved([*history, entry]), options.out)
    return 0


def _check_writable(path: Path, suffix: str) -> None:
    """Checks that something can be written there when all work is done.

    Raises:
        RunError: It cannot.
    """
    if path.suffix != suffix:
        raise RunError(f"--out {path}: allowed: a name that ends in {suffix}")
    if os.path.isdir(path) or not os.path.isdir(path.parent) or not os.access(path.parent, os.W_OK):
        raise RunError(f"--out {path}: cannot be written; allowed: a file in a directory that is there and writable")


def _play_run(path: Path, overrides: list[str]) -> PlayRun:
    def play_run(number: int, scheduler: Path, out: Path) -> None:
        _run(path, [*overrides, "scaler.kind=minions", f"scaler.scheduler={scheduler}",
                    "scaler.scheduler_actions=sampled", f"scaler.draws_seed={number}"], _SEEDS_FROM + number, out)
    return play_run


def _show(options: argparse.Namespace) -> int:
    from runtime.scaler.saved_scheduler import load_scheduler
    from runtime.scheduler.recordings import read_recording
    from runtime.scheduler.showing import run_lines, scheduler_lines

    saved = load_scheduler(options.scheduler)
    _say_all(scheduler_lines(saved))
    if options.run is not None:
        _say_all(run_lines(saved, read_recording(options.run)))
    return 0


def _loaded(path: Path, overrides: Sequence[str]) -> Experiment:
    from runtime.records.downloaded import load_trusted_experiment

    experiment = load_trusted_experiment(path, [*overrides, "scaler.kind=random"])
    say_unused(experiment)
    if experiment.stop.target_return is None:
        raise ExperimentError(f"{path}: stop.target_return = null; a scheduler is trained to reach it: allowed is a "
                              "number")
    return experiment


def _run(path: Path, overrides: Sequence[str], seed: int, out: Path) -> None:
    """Trains the experiment once, or continues it."""
    from runtime.cli.in_python import train

    train(path, out=out, overrides=[*overrides, f"seed={seed}"], resume=True, is_quiet=True)


def _save(saved: SavedScheduler, path: Path) -> None:
    saved.save(path)
    say(f"written      {path}: ${saved.spent_usd:.4f} went into it (modelled)")


def _say_all(lines: Any) -> None:
    for line in lines:
        say(line)
