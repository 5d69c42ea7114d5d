"""The command ``train``."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_experiment, add_parser, add_trust, seeds
from runtime.cli.arguments import say as print_line
from runtime.errors import RunDirectoryError, RunError
from runtime.experiment.explaining import required_keys
from runtime.experiment.resolved import ResolvedExperiment
from runtime.records import layout
from runtime.records.trust import load_trusted_experiment
from runtime.show.display import RunDisplay, settings_text
from runtime.show.end_text import file_lines, resume_lines, summary_lines
from runtime.show.terminal import spent_of
from runtime.show.wandb_log import WandbLog

if TYPE_CHECKING:
    from runtime.training.run import RunResult


def add_command(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    train = add_parser(
        commands,
        "train",
        needs="EXPERIMENT.yaml",
        summary="train an experiment on this machine",
        description="Train an experiment on this machine, until it reaches its target, one of its limits or its "
        f"budget. The experiment file only needs {' and '.join(required_keys())}; `python -m runtime explain` lists "
        "every key, `python -m runtime explain scaler.actors_max` explains one.",
        examples=[
            "train experiments/hopper.yaml",
            "train experiments/hopper.yaml --set budget.usd=0.5 --set stop.max_rounds=20",
            "train --out runs/hopper --resume",
            "train experiments/hopper.yaml --seeds 5 --out runs/five",
        ],
        exit_codes="0 finished, 1 failed while training, 2 refused before anything started, 130 interrupted by Ctrl-C, "
        "143 by SIGTERM, 129 by a closed terminal, 128 and its number by SIGUSR1, SIGUSR2 or SIGXCPU",
    )
    add_experiment(train, unless="; with --resume, may be left out for DIR's own config.yaml")
    train.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for the results (default: "
        "runs/EXPERIMENT-ENVIRONMENT-ALGORITHM-SCALER-seed-S-DATE-TIME)",
    )
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue the run or the seeds in DIR after the last finished round; given an experiment "
        "file, starts afresh if there is none (default: refuse a DIR that holds a run)",
    )
    train.add_argument(
        "--seeds",
        type=seeds,
        metavar="N",
        help="train N seeds under the one budget, the experiment's own and those after it, each in "
        "DIR/seed-S, and estimate what they have in common (default: one run, in DIR itself)",
    )
    add_trust(train)
    train.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="also show the run in this project of Weights & Biases; PROJECT or ENTITY/PROJECT; needs "
        "the package wandb and `wandb login` (default: not)",
    )
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> int:
    file = _experiment_file(options)
    written = load_trusted_experiment(file, options.set, trust=options.trust)
    experiment = written.resolved()
    name = file.stem if options.experiment else options.out.resolve().name
    out = options.out or layout.default_directory(
        name, experiment, datetime.datetime.now(), has_seed=options.seeds is None
    )
    count = options.seeds or layout.seeds_in(out)
    if count:
        return _train_seeds(options, experiment, out, name, count)
    wandb = _wandb(options)
    # A run that is resumed without its file says only what changes.
    display = RunDisplay(experiment, has_settings=options.experiment is not None)
    result = _train_run(options, experiment, out, display, wandb, name)
    with suppress(OSError):
        if result.had_ended:
            print(
                f"nothing was trained: the run had ended by {result.summary['stop_reason']}; to continue it, change "
                "its limits: --set stop.KEY=VALUE, null for none, or a larger budget.usd"
            )
        lines = summary_lines(result.summary, str(out), _resume_command(options, out))
        print("\n".join(["", *lines]), flush=True)
    return result.exit_code


def _experiment_file(options: argparse.Namespace) -> Path:
    """Returns the experiment file, which a resumed run has itself.

    Raises:
        RunError: There is none, or the options do not say where the run is.
    """
    file: Path | None = options.experiment
    if file is not None and file.is_dir():
        raise RunError(
            f"{file} is a directory; to continue the run there: train --out {file} --resume"
        )
    if options.resume and options.out is None:
        raise RunError("--resume: name the run's directory: train --out DIR --resume")
    if file is not None:
        return file
    if not options.resume:
        raise RunError(
            "name an experiment file: train EXPERIMENT.yaml; to continue a run without it: train --out DIR --resume"
        )
    file = options.out / layout.CONFIG
    if not file.exists():
        raise RunDirectoryError(
            f"--resume: {options.out} has no {layout.CONFIG}, so no run to continue; to begin one there, name an "
            f"experiment file: train EXPERIMENT.yaml --out {options.out} --resume"
        )
    return file


def _train_run(
    options: argparse.Namespace,
    experiment: ResolvedExperiment,
    out: Path,
    display: RunDisplay,
    wandb: WandbLog | None,
    name: str,
) -> RunResult:
    """Trains one run in ``out``, and closes its display."""
    from runtime.training.backends import make_backend
    from runtime.training.run import train

    try:
        return train(
            experiment,
            out,
            backend=make_backend(experiment),
            resume=options.resume,
            display=display,
            name=name,
            wandb=wandb,
        )
    finally:
        display.close()


def _resume_command(options: argparse.Namespace, out: Path) -> str:
    """Returns the command that continues the run or the seeds in ``out``, to paste into the same shell."""
    words = [str(options.experiment)] if options.experiment is not None else []
    words += [word for change in options.set for word in ("--set", change)]
    words += ["--out", str(out)]
    words += ["--seeds", str(options.seeds)] if options.seeds is not None else []
    words += ["--wandb", options.wandb] if options.wandb is not None else []
    words += ["--trust"] if options.trust else []
    return shlex.join([*options.launcher, "train", *words, "--resume"])


def _wandb(options: argparse.Namespace, group: str | None = None) -> WandbLog | None:
    def warn(line: str) -> None:
        with suppress(OSError):
            print(f"! {line}", file=sys.stderr, flush=True)

    return WandbLog(options.wandb, warn, group=group) if options.wandb is not None else None


def _train_seeds(
    options: argparse.Namespace, experiment: ResolvedExperiment, out: Path, name: str, count: int
) -> int:
    from runtime.show.report import try_to_write_report
    from runtime.show.seeds_table import table_lines
    from runtime.training.seeds import train_seeds

    wandb = _wandb(options, out.name)
    introduction = settings_text(experiment) if options.experiment is not None else ""

    def say(line: str) -> None:
        with suppress(OSError):
            print_line(line)

    def train_one(following: ResolvedExperiment, path: Path) -> RunResult:
        nonlocal introduction
        number = following.seed - experiment.seed + 1
        most = spent_of(following.budget.usd, experiment.budget.usd)
        say(f"{introduction}\nseed {following.seed}, {number} of {count}: up to {most}\n")
        introduction = ""
        display = RunDisplay(following, has_settings=False)
        return _train_run(options, following, path, display, wandb, name)

    result = train_seeds(
        experiment,
        out,
        train_one,
        count=count,
        resume=options.resume,
        say=say,
        name=name,
    )
    if why := try_to_write_report(out):
        say(f"! no report could be written: {why}")
    lines = table_lines(result.summary, str(out))
    for row in result.summary["seeds"]:
        if row["stop_reason"] == "failed":
            lines += file_lines(str(out / row["directory"]), has_failed=True)
    if result.exit_code:
        lines += resume_lines(_resume_command(options, out))
    say("\n".join(["", *lines]))
    return result.exit_code
