"""Commands for deployments and for runs in the bucket; only ``stop`` changes something."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_parser, positive, say
from runtime.errors import RunError
from runtime.names import OURS, experiment_name, stack_name
from runtime.records import layout

if TYPE_CHECKING:
    from runtime.aws.clients import Client


def add_commands(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
    status = _add_operation(
        commands,
        "status",
        _status,
        "show what is deployed, what it costs, and what may be left",
        "Show every deployment of the account and region with its state and its dollars, resources that cost money "
        "and have no stack, runs that are gone, and whether the guard watches. With EXPERIMENT, that one in more "
        "detail.",
        ["status", "status hopper", "status --json"],
        nargs="?",
    )
    status.add_argument(
        "--json", action="store_true", help="print one JSON document (default: text for people)"
    )
    logs = _add_operation(
        commands,
        "logs",
        _logs,
        "show what a deployment logs",
        "Show the log events of an experiment's newest deployment, its failed boots, and why it ended. Also works when "
        "the stack is gone.",
        ["logs hopper", "logs hopper --actors --since 15"],
    )
    logs.add_argument(
        "--actors", action="store_true", help="the actors' events (default: the learner's)"
    )
    logs.add_argument(
        "--since",
        type=positive,
        default=60,
        metavar="MINUTES",
        help="how far back (default: 60; kept is a week)",
    )
    results = _add_operation(
        commands,
        "results",
        _results,
        "list the runs that the bucket keeps, and download one",
        "List an experiment's runs in the results bucket, and download one of them: the only one, or --run.",
        ["results hopper", "results hopper --run 1a2b3c4d --out runs/hopper"],
    )
    results.add_argument("--run", metavar="RUN", help="which run (default: the only one)")
    results.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory to download it to (default: runs/EXPERIMENT-RUN)",
    )
    stop = add_parser(
        commands,
        "stop",
        needs="EXPERIMENT",
        summary="take a deployment down now",
        description="Take an experiment's deployment down: its learner puts its results into the bucket, then all of "
        "it is deleted. Waits until it is gone. With --stack, EXPERIMENT is left out.",
        examples=["stop hopper", "stop experiments/hopper.yaml --yes", "stop --stack NitroNetwork"],
        exit_codes="0 gone, 1 some of it is left, 2 nothing was done, 130 after Ctrl-C: the teardown continues",
    )
    stop.add_argument(
        "experiment",
        nargs="?",
        metavar="EXPERIMENT",
        help="name or file of an experiment; only the file's name counts",
    )
    stop.add_argument(
        "--stack",
        metavar="NAME",
        help="delete a shared stack instead: NitroGuard, NitroMail, NitroNetwork "
        "or NitroResults, when no experiment needs it any more (default: none)",
    )
    stop.add_argument("--yes", action="store_true", help="do not ask (default: ask)")
    stop.set_defaults(command=_stop)


def _add_operation(
    commands: Any,
    name: str,
    command: Callable[[argparse.Namespace], int],
    summary: str,
    description: str,
    examples: Sequence[str],
    nargs: str | None = None,
) -> argparse.ArgumentParser:
    parser = add_parser(
        commands,
        name,
        needs="[EXPERIMENT]" if nargs else "EXPERIMENT",
        summary=summary,
        description=description,
        examples=examples,
        exit_codes="0, or 2 if AWS cannot be asked or there is nothing to show, 130 after Ctrl-C",
    )
    parser.add_argument(
        "experiment",
        nargs=nargs,
        metavar="EXPERIMENT",
        help="name or file of an experiment; only the file's name counts"
        + (" (default: all)" if nargs else ""),
    )
    parser.set_defaults(command=command)
    return parser


def _status(options: argparse.Namespace) -> int:
    from runtime.aws.operations.status import status_lines, survey

    name = options.experiment and _name(options)
    client, account, region = _account()
    document = survey(
        client,
        name,
        account=account,
        region=region,
        now_s=time.time(),
    )
    say(json.dumps(document, indent=2) if options.json else "\n".join(status_lines(document)))
    return 0


def _logs(options: argparse.Namespace) -> int:
    from runtime.aws.operations.logs import show_logs

    name = _name(options)
    client, _, _ = _account()
    show_logs(
        client,
        name,
        say,
        of_actors=options.actors,
        since_s=60.0 * options.since,
        now_s=time.time(),
    )
    return 0


def _results(options: argparse.Namespace) -> int:
    from runtime.aws.ledger import find_ledger
    from runtime.aws.operations.results import choose_run, continue_lines, download, results_lines
    from runtime.aws.run_files import find_runs

    name = _name(options)
    client, _, _ = _account()
    runs, ledger = find_runs(client, name), find_ledger(client)
    entries = {entry.run: entry for entry in ledger.entries()} if ledger else {}
    run = choose_run(runs, options.run, name)
    say("\n".join(results_lines(runs, entries)))
    if run is None:
        say(
            f"\nto download one: python -m runtime results {options.experiment} --run RUN [--out DIR]"
        )
        return 0
    out = options.out or Path("runs") / f"{name}-{run.name}"
    download(run, out, entries.get(run.key))
    say(f"\n{run.url}\ndownloaded to:    {out}")
    say("\n".join(continue_lines(run, out, options.experiment)))
    return 0


def _stop(options: argparse.Namespace) -> int:
    from runtime.aws.asking import AccountError
    from runtime.aws.clients import open_session
    from runtime.aws.guard.teardown import TeardownError
    from runtime.aws.operations.stop import stop_stack

    if (options.experiment is None) == (options.stack is None):
        raise RunError("stop what? Name an experiment, or a stack with --stack NAME")
    name = options.stack or stack_name(_name(options))
    if not name.startswith(OURS):
        raise AccountError(
            f"--stack {name} is not ours to delete; allowed: names that begin with {OURS}"
        )
    try:
        stop_stack(open_session(), name, is_asked=not options.yes)
    except TeardownError as error:
        print(
            f"error: {error}\nThe guard keeps trying, once a minute; run this again to watch it",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(
            "\nNot waiting any longer: the teardown continues, and the guard completes it",
            file=sys.stderr,
        )
        return 130
    return 0


def _account() -> tuple[Client, str, str]:
    """Returns clients, the account's number, and the region.

    Raises:
        AccountError: No region is set, or there are no usable credentials.
    """
    from runtime.aws.clients import clients, identify, open_session

    session = open_session()
    return clients(session), identify(session), str(session.region_name)


def _name(options: argparse.Namespace) -> str:
    """Returns the experiment's name, given its name or file.

    Raises:
        RunError: It is a run's directory, or cannot be the name of an experiment.
    """
    path = Path(options.experiment)
    if (path / layout.CONFIG).exists() or layout.seeds_in(path):
        raise RunError(
            f"{options.experiment} is a run on this machine, and this command is about AWS. Ctrl-C stops a run here; "
            f"python -m runtime report {options.experiment} shows it"
        )
    return experiment_name(path.stem)
