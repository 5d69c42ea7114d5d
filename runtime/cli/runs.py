"""The commands for runs: ``evaluate`` and ``export`` for their policies, and ``report``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambda_actor.guarding import closed_in_time
from runtime.cli.arguments import add_parser, add_trust, not_negative, positive, say
from runtime.errors import MissingExtraError
from runtime.experiment.schema import Experiment
from runtime.records import layout
from runtime.records.files import check_place, read_json_object
from runtime.records.rows import return_digits
from runtime.show.terminal import counted

if TYPE_CHECKING:
    from lambda_actor.environments import ActorEnvironment


def add_commands(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
    evaluate = add_parser(
        commands,
        "evaluate",
        needs="DIR",
        summary="evaluate a run's policy",
        description="Evaluate the policy of a run: mean, standard deviation, least and most of return and episode "
        "length, for people on standard error, and as JSON on standard output where that is no terminal.",
        examples=[
            "evaluate runs/hopper",
            "evaluate runs/hopper --episodes 100 --seed 7",
            "evaluate runs/hopper --video hopper.mp4",
        ],
    )
    _add_policy(evaluate)
    evaluate.add_argument(
        "--episodes",
        type=positive,
        metavar="N",
        help="episodes (default: evaluation.episodes of the experiment)",
    )
    evaluate.add_argument(
        "--seed",
        type=not_negative,
        default=0,
        metavar="N",
        help="seed of the start states, and of sampled actions (default: 0)",
    )
    evaluate.add_argument(
        "--stochastic",
        action=argparse.BooleanOptionalAction,
        help="sample the actions, as training does, or take the Gaussian's mean, or the most "
        "probable one (default: evaluation.actions of the experiment)",
    )
    evaluate.add_argument(
        "--video",
        type=Path,
        metavar="FILE",
        help="film the first episode, its first five minutes at most, as .mp4 (default: no video)",
    )
    evaluate.set_defaults(command=_evaluate)
    export = add_parser(
        commands,
        "export",
        needs="DIR --onnx FILE",
        summary="write a run's policy as an ONNX file",
        description="Write a run's policy as one ONNX file, with normalization and clipping inside: raw observations "
        "in, the environment's actions out. See docs/guides/export.md.",
        examples=["export runs/hopper --onnx hopper.onnx"],
    )
    _add_policy(export)
    export.add_argument(
        "--onnx",
        type=Path,
        metavar="FILE",
        required=True,
        help="the file (required), which is replaced where it exists; needs the package onnx",
    )
    export.set_defaults(command=_export)
    report = add_parser(
        commands,
        "report",
        needs="DIR [DIR ...]",
        summary="write a page about a run, several seeds, or several of them",
        description="Write one page of HTML that needs no network: return against steps, time and dollars, actors with "
        "signal and score, where dollars and seconds went, events, and the configuration. Each finished run has one "
        "already, in its own directory. A directory of several seeds is shown with intervals; several directories are "
        "compared.",
        examples=["report runs/hopper", "report runs/nitro runs/fixed --out comparison.html"],
        exit_codes="0 written, 2 refused: a directory holds no run, or the page cannot be written",
    )
    report.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="directory of a run or of several seeds",
    )
    report.add_argument(
        "--out",
        type=Path,
        default=Path(layout.REPORT),
        metavar="FILE.html",
        help=f"the file to write (default: {layout.REPORT})",
    )
    report.set_defaults(command=_report)


def _add_policy(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", type=Path, metavar="DIR", help="a run's directory")
    command.add_argument(
        "--best",
        action="store_true",
        help="take the policy of the run's best evaluation (default: the policy that reached the "
        "target, else the newest)",
    )
    command.add_argument(
        "--environment",
        metavar="ID",
        help="the environment; needed where the run was downloaded and its environment is code of "
        "your own (default: the run's)",
    )
    add_trust(command)


def _evaluate(options: argparse.Namespace) -> int:
    from lambda_actor.policy import Policy
    from runtime.show.video import Video, check_path, choose_renderer
    from runtime.training.evaluation import Evaluator

    if options.video:
        check_path(options.video)
        choose_renderer()
    weights, experiment, environment = _trained(options)
    episodes = options.episodes or experiment.evaluation.episodes
    actions = experiment.evaluation.actions
    if options.stochastic is not None:
        actions = "stochastic" if options.stochastic else "deterministic"
    video = Video(options.video, environment) if options.video else None
    evaluate = Evaluator(
        environment,
        episodes,
        seed=options.seed,
        is_stochastic=actions == "stochastic",
        episode_over=video.end if video else lambda: None,
    )
    with closed_in_time(environment), video.filming() if video else nullcontext():
        evaluation = evaluate(weights)
    if video:
        print(
            f"{video.path}: the first episode, {video.frames} frames, {video.frames / video.frames_per_s:.1f} s",
            file=sys.stderr,
        )
    returns = _statistics(evaluation.returns)
    lengths = _statistics(evaluation.lengths)
    digits = return_digits(max(abs(returns["min"]), abs(returns["max"])))
    print(
        f"{counted(episodes, 'episode')} with {actions} actions, mean ± standard deviation (least … most):\n"
        f"return  {_described(returns, digits)}\nlength  {_described(lengths, 1)} steps",
        file=sys.stderr,
    )
    if options.best and options.seed == experiment.seed:
        print(
            "the run chose this policy by its return on these very start states, so it looks better than it is: take "
            "another --seed",
            file=sys.stderr,
        )
    if sys.stdout.isatty():
        return 0
    print(
        json.dumps(
            {
                "environment_id": experiment.environment.id,
                "policy_version": Policy.from_bytes(weights).policy_version,
                "actions": actions,
                "seed": options.seed,
                "episodes": episodes,
                **{f"evaluation_return_{name}": value for name, value in returns.items()},
                **{f"episode_length_{name}": value for name, value in lengths.items()},
            },
            indent=2,
        )
    )
    return 0


def _statistics(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, standard deviation (divided by n), minimum and maximum."""
    import numpy as np

    return {
        "mean": float(np.mean(values)),
        "std": float(np.std(values)),
        "min": min(values),
        "max": max(values),
    }


def _described(statistics: Mapping[str, float], digits: int) -> str:
    mean, std, least, most = (
        f"{statistics[name]:,.{digits}f}" for name in ("mean", "std", "min", "max")
    )
    return f"{mean} ± {std} ({least} … {most})"


def _export(options: argparse.Namespace) -> int:
    try:
        from runtime.show.onnx import save_onnx
    except ImportError:
        raise MissingExtraError("--onnx", "onnx", "export") from None
    check_place("--onnx", options.onnx, (".onnx",))
    weights, experiment, environment = _trained(options)
    facts = {
        "environment_id": experiment.environment.id,
        "preprocessing": environment.preprocessing,
        "frame_stack": str(environment.spaces.frame_stack),
        "algorithm": experiment.algorithm.kind,
    }
    summary = read_json_object(options.directory / layout.SUMMARY)
    if summary:
        facts["experiment"] = str(summary.get("experiment"))
    with closed_in_time(environment):
        print(save_onnx(options.onnx, weights, environment, facts))
    return 0


def _trained(options: argparse.Namespace) -> tuple[bytes, Experiment, ActorEnvironment]:
    """Calls `load_run_policy`, with its errors."""
    from runtime.show.exported_policy import load_run_policy

    return load_run_policy(
        options.directory,
        is_best=options.best,
        environment_id=options.environment,
        trust=options.trust,
    )


def _report(options: argparse.Namespace) -> int:
    from runtime.show.report import write_report

    check_place("--out", options.out, (".html",))
    write_report(options.directories, options.out)
    say(f"report       {options.out}")
    return 0
