"""The command line: ``python -m runtime train``, ``evaluate``, ``export``, and what looks at a deployment."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambda_actor.errors import ActorError
from runtime.backends.aws.deployment import experiment_name
from runtime.config.explaining import allowed_values, default_text, section_of, walk_fields
from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment
from runtime.errors import RunDirectoryError, RunError
from runtime.records import layout

if TYPE_CHECKING:
    from lambda_actor.environments import ActorEnvironment
    from runtime.display.wandb_log import WandbLog
    from runtime.operations.kept_runs import KeptRun

SEEDS_MAX = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        # A terminal of another encoding gets question marks, not an error.
        getattr(sys, name).reconfigure(errors="replace")
    try:
        return options.command(options)
    except (RunError, ActorError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _train(options: argparse.Namespace) -> int:
    from runtime.display.table import make_display, summary_lines
    from runtime.training.run import train
    from runtime.training.seeds import holds_seeds
    from runtime.training.signals import Interrupted

    if options.resume and options.out is None:
        raise RunError("--resume: name the run's directory with --out DIR")
    experiment = load_experiment(options.experiment, options.set).resolved()
    name = options.experiment.stem
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    out = options.out or Path("runs") / f"{name}-{stamp}"
    if options.seeds is not None:
        return _train_seeds(options, experiment, out, name)
    if holds_seeds(out):
        raise RunDirectoryError(f"--out {out}: holds runs of several seeds; continue them with --seeds N --resume, or "
                                "name another")
    wandb, display = _wandb(options), make_display(experiment)
    try:
        summary, code = train(experiment, out, resume=options.resume, display=display, name=name, wandb=wandb)
    except Interrupted as interrupt:
        print("interrupted before the first round", file=sys.stderr)
        return 128 + interrupt.signal_number
    finally:
        display.close()
    with suppress(OSError):
        print("\n".join(["", *summary_lines(summary, str(out))]), flush=True)
    return code


def _wandb(options: argparse.Namespace, group: str | None = None) -> WandbLog | None:
    from runtime.display.wandb_log import WandbLog

    def warn(line: str) -> None:
        with suppress(OSError):
            print(f"! {line}", file=sys.stderr, flush=True)

    return WandbLog(options.wandb, warn, group=group) if options.wandb is not None else None


def _train_seeds(options: argparse.Namespace, experiment: Experiment, out: Path, name: str) -> int:
    from runtime.display.table import make_display
    from runtime.training.seeds import table_lines, train_seeds

    def say(line: str) -> None:
        with suppress(OSError):
            _say(line)

    summary, code = train_seeds(experiment, out, seeds=options.seeds, resume=options.resume,
                                make_display=make_display, say=say, name=name, wandb=_wandb(options, out.name))
    say("\n".join(["", *table_lines(summary, str(out))]))
    return code


def _evaluate(options: argparse.Namespace) -> int:
    from runtime.export.video import Video, advice, check_path, choose_renderer
    from runtime.training.evaluation import Evaluator
    from runtime.training.signals import Interrupted, Signals

    if options.video:
        check_path(options.video)
        choose_renderer()
    try:
        weights, experiment, environment = _trained(options.directory)
    except ActorError as error:
        raise RunError(f"{error}{advice() if options.video else ''}") from error
    episodes = options.episodes or experiment.evaluation.episodes
    video = Video(options.video, environment) if options.video else None
    evaluate = Evaluator(environment, episodes, seed=options.seed, episode_over=video.end if video else lambda: None)
    try:
        with Signals(), video.filming() if video else nullcontext():
            evaluation = evaluate(weights)
    except Interrupted as interrupt:
        print("interrupted", file=sys.stderr)
        return 128 + interrupt.signal_number
    if video:
        print(f"{video.path}: the first episode, {video.frames} frames, {video.frames / video.frames_per_s:.1f} s",
              file=sys.stderr)
    print(json.dumps({
        "environment_id": experiment.environment.id, "episodes": episodes,
        "evaluation_return_mean": evaluation.return_mean,
        "evaluation_return_min": min(evaluation.returns), "evaluation_return_max": max(evaluation.returns),
        "episode_length_mean": sum(evaluation.lengths) / episodes,
    }, indent=2))
    return 0


def _export(options: argparse.Namespace) -> int:
    from runtime.export.onnx import check_onnx, save_onnx

    check_onnx(options.onnx)
    weights, experiment, environment = _trained(options.directory)
    facts = {"environment_id": experiment.environment.id, "preprocessing": environment.preprocessing,
             "frame_stack": str(environment.spaces.frame_stack), "algorithm": experiment.algorithm.kind}
    # Of a run that goes on, nothing says it.
    with suppress(OSError, ValueError, KeyError, TypeError):
        facts["experiment"] = str(json.loads((options.directory / layout.SUMMARY).read_bytes())["experiment"])
    print(save_onnx(options.onnx, weights, environment, facts))
    return 0


def _trained(directory: Path) -> tuple[bytes, Experiment, ActorEnvironment]:
    """A run's policy as a WEIGHTS message, its experiment, and an environment to act in.

    Raises:
        RunError: The directory does not hold one run's policy.
        UnusableEnvironmentError: The environment cannot be made here.
    """
    from lambda_actor.environments import make_environment
    from runtime.records.policy_file import load_policy
    from runtime.training.seeds import holds_seeds

    if holds_seeds(directory):
        raise RunError(f"{directory} holds several seeds: name one of its directories, seed-S")
    weights = load_policy(directory / layout.POLICY)
    experiment = load_experiment(directory / layout.CONFIG)
    return weights, experiment, make_environment(experiment.environment.id, experiment.environment.preprocessing)


def _status(options: argparse.Namespace) -> int:
    from runtime.operations.commands import status_lines
    from runtime.operations.survey import survey

    client, account, region = _account()
    document = survey(client, options.experiment and _name(options), account=account, region=region,
                      now_s=time.time())
    _say(json.dumps(document, indent=2) if options.json else "\n".join(status_lines(document)))
    return 0


def _logs(options: argparse.Namespace) -> int:
    from runtime.operations.commands import show_logs

    client, _, _ = _account()
    show_logs(client, _name(options), _say, of_actors=options.actors, since_s=60.0 * options.since,
              is_following=options.follow, now=time.time, sleep=time.sleep)
    return 0


def _results(options: argparse.Namespace) -> int:
    from runtime.operations.commands import continue_lines, results_lines
    from runtime.operations.kept_runs import download

    _, name, runs, run = _find_run(options)
    _say("\n".join(results_lines(runs)))
    if run is None:
        _say(f"\nto download one: python -m runtime results {options.experiment} --run RUN [--out DIR]")
        return 0
    out = options.out or Path("runs") / f"{name}-{run.run}"
    _say(f"\n{run.url}")
    download(run, out, _say)
    file = Path(options.experiment)
    _say("\n".join(["", f"downloaded to:    {out}",
                    *continue_lines(run, out, name, file if file.is_file() else None)]))
    return 0


def _reconcile(options: argparse.Namespace) -> int:
    from runtime.operations.bill import ask_bill, bill_lines
    from runtime.operations.commands import counted, run_days
    from runtime.operations.survey import OperationError

    client, name, runs, run = _find_run(options)
    if run is None:
        raise OperationError(f"{name} has several runs: name one with --run: {', '.join(one.run for one in runs)}")
    first, last, ended_s_ago = run_days(run, time.time())
    counted_usd, counted_by = counted(client, run, name)
    bill = ask_bill(client("ce"), name, run.run, first=first, last=last)
    _say("\n".join(bill_lines(bill, run=f"{name}/{run.run}", counted_usd=counted_usd, counted_by=counted_by,
                              ended_s_ago=ended_s_ago)))
    return 0


def _stop(options: argparse.Namespace) -> int:
    from runtime.aws.account import AccountError, open_session
    from runtime.guard.deployments import STACK_PREFIX
    from runtime.guard.teardown import TeardownError
    from runtime.operations.stop import OURS, stop_stack

    if (options.experiment is None) == (options.stack is None):
        raise RunError("stop what? Name an experiment, or a stack with --stack NAME")
    name = options.stack or STACK_PREFIX + _name(options)
    if not name.startswith(OURS):
        raise AccountError(f"--stack {name} is not ours to delete; allowed: names that begin with {OURS}")
    try:
        stop_stack(open_session(), name, is_asked=not options.yes)
    except TeardownError as error:
        print(f"error: {error}\nThe guard goes on trying, once a minute; run this again to watch it", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nNot waiting any longer: what has begun goes on, and the guard sees to its end", file=sys.stderr)
        return 130
    return 0


def _account() -> tuple[Callable[[str], Any], str, str]:
    """Clients, the account's number, and the region.

    Raises:
        AccountError: No region is set, or there are no usable credentials.
    """
    from runtime.aws.account import identify, open_session
    from runtime.guard.teardown import clients

    session = open_session()
    return clients(session), identify(session), session.region_name


def _find_run(options: argparse.Namespace) -> tuple[Callable[[str], Any], str, list[KeptRun], KeptRun | None]:
    """Clients, the experiment's name, its runs in the bucket, and the one that is meant, where that can be told.

    Raises:
        AccountError: The bucket cannot be read.
        OperationError: There is none.
    """
    from runtime.operations.commands import choose_run
    from runtime.operations.kept_runs import find_bucket, find_runs

    client, _, _ = _account()
    name = _name(options)
    runs = find_runs(client, find_bucket(client), name)
    return client, name, runs, choose_run(runs, options.run, name)


def _name(options: argparse.Namespace) -> str:
    """The experiment's, of which the user gives the name or the file.

    Raises:
        ExperimentError: It cannot be one.
    """
    return experiment_name(Path(options.experiment).stem)


def _say(line: str) -> None:
    from runtime.display.terminal import printable

    print(printable(line), flush=True)


def _interruptible(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, which Ctrl-C ends without more words, and damaged files with few: it has changed nothing."""
    def run(options: argparse.Namespace) -> int:
        try:
            return command(options)
        except KeyboardInterrupt:
            return 130
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RunError("something that the bucket or the ledger holds cannot be read: "
                           f"{type(error).__name__}: {error}") from error
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runtime", description="Train deep-RL policies with serverless actors, within a budget.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train", help="train an experiment on this machine", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train an experiment on this machine. Exit codes: 0 finished, 1 failed while training, 2 refused "
        "before anything started,\n130 interrupted by Ctrl-C, 143 by SIGTERM, 129 by a closed terminal.",
        epilog=_keys_help())
    train.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file")
    train.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
                       help="override one key of the experiment file; may be repeated (default: none)")
    train.add_argument("--out", type=Path, metavar="DIR",
                       help="directory for the results (default: runs/EXPERIMENT-DATE-TIME)")
    train.add_argument("--resume", action="store_true",
                       help="continue the run in DIR after its last finished round; starts afresh where there is none "
                       "(default: refuse a DIR that holds a run)")
    train.add_argument("--seeds", type=_seeds, metavar="N",
                       help="train N seeds under the one budget, the experiment's own and those after it, each in "
                       "DIR/seed-S, and estimate what they have in common (default: one run, in DIR itself)")
    train.add_argument("--wandb", type=_project, metavar="PROJECT",
                       help="show the run in this project of Weights & Biases, too; PROJECT or ENTITY/PROJECT; needs "
                       "the package wandb and `wandb login` (default: not)")
    train.set_defaults(command=_train)
    evaluate = commands.add_parser("evaluate", help="evaluate a run's policy",
                                   description="Evaluate the policy of a run with deterministic actions; prints JSON.")
    evaluate.add_argument("directory", type=Path, metavar="DIR", help="a run's directory")
    evaluate.add_argument("--episodes", type=_positive, metavar="N",
                          help="episodes (default: evaluation.episodes of the experiment)")
    evaluate.add_argument("--seed", type=_not_negative, default=0, metavar="N",
                          help="seed of the start states (default: 0)")
    evaluate.add_argument("--video", type=Path, metavar="FILE",
                          help="film the first episode, its first five minutes at most, as .mp4 or, in less time, "
                          ".webm (default: no video)")
    evaluate.set_defaults(command=_evaluate)
    export = commands.add_parser(
        "export", help="write a run's policy as an ONNX file", description="Write a run's policy as one ONNX file, "
        "with normalisation and clipping inside: raw observations in, the environment's actions out. See "
        "docs/guides/export.md.")
    export.add_argument("directory", type=Path, metavar="DIR", help="a run's directory")
    export.add_argument("--onnx", type=Path, metavar="FILE", required=True,
                        help="the file, which is replaced where it exists; needs the package onnx")
    export.set_defaults(command=_export)
    _add_operations(commands)
    return parser


def _add_operations(commands: Any) -> None:
    """What looks at a deployment; only ``stop`` changes something."""
    status = _add_operation(
        commands, "status", _status, "show what is deployed, what it costs, and what is left over",
        "Show every deployment of the account and region with its state and its dollars, resources that cost money "
        "and belong to no stack any more, runs that are gone, and whether the guard watches. With EXPERIMENT, that "
        "one in more detail.", nargs="?")
    status.add_argument("--json", action="store_true", help="print one JSON document (default: text for people)")
    logs = _add_operation(
        commands, "logs", _logs, "show what a deployment logs",
        "Show the learner's log events of a deployment, or what the bucket kept where its stack is gone.")
    logs.add_argument("--actors", action="store_true", help="the actors' events (default: the learner's)")
    logs.add_argument("--follow", action="store_true",
                      help="go on until Ctrl-C, or until the stack is gone (default: show and end)")
    logs.add_argument("--since", type=_positive, default=60, metavar="MINUTES",
                      help="how far back (default: 60; kept is a week)")
    results = _add_operation(
        commands, "results", _results, "list the runs that the bucket keeps, and download one",
        "List an experiment's runs in the results bucket, and download one of them: the only one, or --run.")
    results.add_argument("--run", metavar="RUN", help="which run (default: the only one)")
    results.add_argument("--out", type=Path, metavar="DIR",
                         help="directory to download it to (default: runs/EXPERIMENT-RUN)")
    reconcile = _add_operation(
        commands, "reconcile", _reconcile, "compare a run's dollars with AWS' bill, a day later",
        "Ask Cost Explorer what AWS bills for a run, and compare it with what the run counted. Each request costs "
        "$0.01; the run's tags have to be cost allocation tags.")
    reconcile.add_argument("--run", metavar="RUN", help="which run (default: the only one)")
    stop = commands.add_parser(
        "stop", help="take a deployment down now", description="Take an experiment's deployment down: its learner "
        "puts its results into the bucket, then all of it is deleted. Waits until it is gone. Exit codes: 0 gone, 1 "
        "some of it is left, 2 nothing was done, 130 after Ctrl-C: what has begun goes on.")
    stop.add_argument("experiment", nargs="?", metavar="EXPERIMENT",
                      help="name or file of an experiment; only the file's name counts")
    stop.add_argument("--stack", metavar="NAME", help="delete a shared stack instead: NitroGuard, NitroNetwork or "
                      "NitroResults, when no experiment needs it any more (default: none)")
    stop.add_argument("--yes", action="store_true", help="do not ask (default: ask)")
    stop.set_defaults(command=_stop)


def _add_operation(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], help_text: str, description: str,
    nargs: str | None = None,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=description + " Exit codes: 0, or 2 where AWS "
                                 "cannot be asked or there is nothing to show, 130 after Ctrl-C.")
    parser.add_argument("experiment", nargs=nargs, metavar="EXPERIMENT",
                        help="name or file of an experiment; only the file's name counts"
                        + (" (default: all)" if nargs else ""))
    parser.set_defaults(command=_interruptible(command))
    return parser


def _keys_help() -> str:
    lines = ["keys of the experiment file (default; allowed):"]
    for path, info in walk_fields():
        if section_of(info) is None:
            lines += [f"  {path} ({default_text(info)}; {allowed_values(info)})", f"      {info.description}"]
    return "\n".join(lines)


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _not_negative(text: str) -> int:
    return _at_least(text, 0)


def _project(text: str) -> str:
    if not re.fullmatch(r"([^/\s]+/)?[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: PROJECT or ENTITY/PROJECT")
    return text


def _seeds(text: str) -> int:
    count = _positive(text)
    if count > SEEDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from 1 to {SEEDS_MAX}")
    return count


def _at_least(text: str, lowest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from {lowest}")
    return value
