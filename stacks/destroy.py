"""``python -m stacks.destroy EXPERIMENT.yaml``: deletes an experiment's stack, and waits until it is gone.

Only the file's name counts; the file may be changed, broken or gone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError

from runtime.cost.account import AccountError, ask, identify, open_session
from runtime.deployment import experiment_name
from runtime.errors import RunError
from runtime.teardown import TeardownError, cloudformation, delete_stack, find_stack, stack_names
from stacks.terminal import is_confirmed, laid_out

_PREFIX = "Nitro"
_RESULTS = "the results bucket"
_STAYS = {
    "NitroResults": f"{_RESULTS} itself, with all that is in it",
    "NitroNetwork": f"{_RESULTS} (stack NitroResults)",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 where the stack is gone, 1 where some of it is left, 2 where nothing was done."""
    options = _parser().parse_args(arguments)
    try:
        return _destroy(_stack_name(options), is_asked=not options.yes)
    except TeardownError as error:
        print(f"error: {error}\nRun it again when that is mended: what is gone already is passed over",
              file=sys.stderr)
        return 1
    except (RunError, BotoCoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nNot waiting any longer: a deletion that has begun goes on in AWS. Run it again to see how it ends",
              file=sys.stderr)
        return 130


def _destroy(name: str, *, is_asked: bool) -> int:
    session = open_session()
    account_id = identify(session)
    client = cloudformation(session)
    stack = ask(lambda: find_stack(client, name))
    if stack is None:
        raise AccountError(_nothing_there(client, name, account_id, session.region_name))
    print("\n".join(laid_out({
        "account": f"{account_id}, {session.region_name}",
        "stack": f"{name}, {stack['StackStatus']}",
        "stays": _STAYS.get(name, f"{_RESULTS} and the network (stacks NitroResults and NitroNetwork)"),
    })), flush=True)
    _check_wish(is_asked)
    try:
        ask(lambda: delete_stack(client, stack["StackId"], lambda line: print(f"  {line}", flush=True)))
    except AccountError as error:
        raise TeardownError(f"{error}. A deletion that has begun goes on in AWS") from error
    print(f"{name} is gone", flush=True)
    return 0


def _nothing_there(client: Any, name: str, account_id: str, region: str) -> str:
    others = ask(lambda: stack_names(client, f"{_PREFIX}-"))
    return (f"no stack {name} in account {account_id}, region {region}; there are: {', '.join(others) or 'none'}. "
            "Another region is named by AWS_DEFAULT_REGION, another account by AWS_PROFILE")


def _check_wish(is_asked: bool) -> None:
    """Raises: AccountError: Nobody said yes."""
    if not is_asked:
        return
    if not sys.stdin.isatty():
        raise AccountError("nothing was deleted: there is no terminal to ask on; say --yes")
    if not is_confirmed("Delete it? It may take up to an hour, while Lambda gives its network interfaces back."):
        raise AccountError("nothing was deleted")


def _stack_name(options: argparse.Namespace) -> str:
    """Raises: ExperimentError: The file's name cannot be a stack's. AccountError: The stack is none of ours."""
    if options.experiment is not None:
        return f"{_PREFIX}-{experiment_name(options.experiment.stem)}"
    if not options.stack.startswith(_PREFIX):
        raise AccountError(f"--stack {options.stack} is not ours to delete; allowed: names that begin with {_PREFIX}")
    return options.stack


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stacks.destroy", usage="%(prog)s (EXPERIMENT.yaml | --stack NAME) [--yes]",
        description="Delete what one experiment has in AWS, but for its results.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("experiment", type=Path, nargs="?", metavar="EXPERIMENT.yaml",
                       help="the experiment file; only its name counts")
    which.add_argument("--stack", metavar="NAME", help="a stack by name, such as NitroNetwork")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser


if __name__ == "__main__":
    sys.exit(main())
