"""The command line: ``python -m runtime train`` and ``python -m runtime evaluate``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lambda_actor.errors import ActorError
from runtime.config import Experiment, allowed_values, default_text, load_experiment, walk_fields
from runtime.errors import RunError


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
        print("interrupted before the first round", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _train(options: argparse.Namespace) -> int:
    from runtime.display import make_display, summary_lines
    from runtime.signals import Interrupted
    from runtime.train import train

    if options.resume and options.out is None:
        raise RunError("--resume: name the run's directory with --out DIR")
    experiment = load_experiment(options.experiment, options.set).resolved()
    name = options.experiment.stem
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    out = options.out or Path("runs") / f"{name}-{stamp}"
    display = make_display(experiment)
    try:
        summary, code = train(experiment, out, resume=options.resume, display=display, name=name)
    except Interrupted as interrupt:
        print("interrupted before the first round", file=sys.stderr)
        return 128 + interrupt.signal_number
    finally:
        display.close()
    with suppress(OSError):
        print("\n".join(["", *summary_lines(summary, str(out))]), flush=True)
    return code


def _evaluate(options: argparse.Namespace) -> int:
    from lambda_actor.environments import make_environment
    from runtime.evaluation import Evaluator
    from runtime.policy_file import load_policy

    weights = load_policy(options.directory / "policy.safetensors")
    experiment = load_experiment(options.directory / "config.yaml")
    episodes = options.episodes or experiment.evaluation.episodes
    environment = make_environment(experiment.environment.id)
    evaluation = Evaluator(environment, episodes, seed=options.seed)(weights)
    print(json.dumps({
        "environment_id": experiment.environment.id, "episodes": episodes,
        "evaluation_return_mean": evaluation.return_mean,
        "evaluation_return_min": min(evaluation.returns), "evaluation_return_max": max(evaluation.returns),
        "episode_length_mean": sum(evaluation.lengths) / episodes,
    }, indent=2))
    return 0


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
    train.set_defaults(command=_train)
    evaluate = commands.add_parser("evaluate", help="evaluate a run's policy",
                                   description="Evaluate the policy of a run with deterministic actions; prints JSON.")
    evaluate.add_argument("directory", type=Path, metavar="DIR", help="a run's directory")
    evaluate.add_argument("--episodes", type=_positive, metavar="N",
                          help="episodes (default: evaluation.episodes of the experiment)")
    evaluate.add_argument("--seed", type=_not_negative, default=0, metavar="N",
                          help="seed of the start states (default: 0)")
    evaluate.set_defaults(command=_evaluate)
    return parser


def _keys_help() -> str:
    lines = ["keys of the experiment file (default; allowed):"]
    for path, info in walk_fields(Experiment):
        if "a section of keys" in allowed_values(path.split(".")):
            continue
        lines += [f"  {path} ({default_text(info)}; {allowed_values(path.split('.'))})", f"      {info.description}"]
    return "\n".join(lines)


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _not_negative(text: str) -> int:
    return _at_least(text, 0)


def _at_least(text: str, lowest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from {lowest}")
    return value
