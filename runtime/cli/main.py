"""The command line, ``python -m runtime`` or ``nitro-rl``: arguments, errors and exit codes.

Each family of commands has its own file, which loads a command's modules when the command runs.
"""

from __future__ import annotations

import argparse
import codecs
import os
import signal
import sys
from collections.abc import Sequence

from lambda_actor.errors import ActorError
from runtime import __version__
from runtime.cli import deployments, explain, plan, runs, train
from runtime.cli.arguments import launcher
from runtime.errors import RunError
from runtime.experiment.explaining import required_keys
from runtime.show.terminal import printable

_DESCRIPTION = """\
Train deep-RL policies with serverless actors, within a budget.

examples:
  python -m runtime train experiments/hopper.yaml --out runs/hopper
  python -m runtime train experiments/hopper.yaml --set environment.id=CartPole-v1 --set stop.target_return=475
  python -m runtime plan experiments/hopper.yaml
  python -m runtime evaluate runs/hopper --video hopper.mp4
  python -m runtime explain scaler

`python -m runtime COMMAND --help` has examples of each command. An experiment file only needs
{required}; an environment of your own that has no limit of steps also
needs environment.max_episode_steps. `explain` lists all keys."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and returns the exit code.

    Args:
        arguments: The words after the command's name; None = this process's own.
    """
    return run_command(_parser(), arguments)


_READABLE = "nitro_rl.readable"
_ASCII = {"–": "-", "−": "-", "…": "...", "→": "->", "×": "x", "±": "+-", "·": "*", "≤": "<="}


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Replaces characters that a terminal's encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in characters), error.end


codecs.register_error(_READABLE, _readable)


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs the parsed command, and returns the exit code; prints errors in one line.

    Args:
        parser: Its options name the command's function, ``command``.
        arguments: The words after the program's name; None = this process's own.
    """
    called = launcher() if arguments is None else ["python", "-m", "runtime"]
    options = parser.parse_args(arguments, argparse.Namespace(launcher=called))
    for name in ("stdout", "stderr"):
        getattr(sys, name).reconfigure(errors=_READABLE)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has enough, like `head`; the rest is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (RunError, ActorError) as error:
        # It may contain text of a downloaded run.
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        return getattr(interrupt, "exit_code", 130)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runtime",
        usage="%(prog)s COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION.format(required=" and ".join(required_keys())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        required=True, metavar="COMMAND", title="commands", prog="python -m runtime"
    )
    train.add_command(commands)
    plan.add_command(commands)
    runs.add_commands(commands)
    explain.add_command(commands)
    deployments.add_commands(commands)
    return parser
