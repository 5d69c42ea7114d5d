"""``python -m runtime stop``: takes an experiment's deployment down in the same way as the guard, and watches.

It needs only the name; the experiment's file may be changed, broken or gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client, Session, clients, identify
from runtime.aws.guard.deletion import (
    POLL_S,
    TeardownError,
    delete_stack,
    what_is_left,
)
from runtime.aws.guard.ledger import LedgerError, find_ledger
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.guard.teardown import Teardown
from runtime.aws.stacks import find_stack, stack_names
from runtime.names import GUARD_STACK, NETWORK_STACK, RESULTS_STACK, STACK_PREFIX
from runtime.show.terminal import confirm, laid_out

REASON = "stopped by hand"
_FAILURES_MAX = 2
"""Failed deletions to watch before giving up; the guard continues to try."""
_RESULTS = "the results bucket"
_STAYS = {
    RESULTS_STACK: f"{_RESULTS} itself, with all that is in it",
    NETWORK_STACK: f"{_RESULTS} (stack {RESULTS_STACK})",
    GUARD_STACK: f"{_RESULTS} and the network (stacks {RESULTS_STACK} and {NETWORK_STACK})",
}


def stop_stack(session: Session, name: str, *, is_asked: bool) -> None:
    """Takes the stack ``name`` down after confirmation, and returns when it is gone.

    Args:
        session: Session of the account and region.
        name: Name of the stack.
        is_asked: Whether to ask on the terminal.

    Raises:
        TeardownError: Some of it is left.
        RunError: Nothing was done.
    """
    account_id = identify(session)
    client = clients(session)
    formation = client("cloudformation")
    stack = ask(lambda: find_stack(formation, name))
    if stack is None:
        raise AccountError(_nothing_there(formation, name, account_id, session.region_name))
    print(
        "\n".join(
            laid_out(
                {
                    "account": f"{account_id}, {session.region_name}",
                    "stack": f"{name}, {stack['StackStatus']}",
                    "stays": _STAYS.get(
                        name,
                        f"{_RESULTS}, the network and the guard (stacks {RESULTS_STACK}, {NETWORK_STACK} "
                        f"and {GUARD_STACK})",
                    ),
                }
            )
        ),
        flush=True,
    )
    if is_asked:
        confirm("Delete it? It takes about ten minutes.", "nothing was deleted")
    try:
        ask(lambda: take_down(client, stack, lambda line: print(f"  {line}", flush=True)))
    except (AccountError, LedgerError) as error:
        raise TeardownError(f"{error}. What has begun continues in AWS") from error
    print(f"{name} is gone", flush=True)


def _nothing_there(client: Any, name: str, account_id: str, region: str | None) -> str:
    others = ask(lambda: stack_names(client, STACK_PREFIX))
    return (
        f"no stack {name} in account {account_id}, region {region}; there are: {', '.join(others) or 'none'}. "
        "Another region is named by AWS_DEFAULT_REGION, another account by AWS_PROFILE"
    )


def take_down(
    client: Client,
    stack: Mapping[str, Any],
    report: Callable[[str], None],
    *,
    now: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Takes an experiment's deployment down, and returns when all of it is gone; any other stack is just deleted.

    The caller may stop waiting at any time: an experiment's teardown is ordered, and the guard completes it.

    Args:
        client: Makes boto3 clients by service name.
        stack: As ``describe_stacks`` returns it.
        report: Receives progress messages.
        now: Returns seconds since 1970; None uses AWS' clock, which is the guard's.
        sleep: Waits for a number of seconds.

    Raises:
        TeardownError: It could not be deleted completely; the text says what is left and why.
        AccountError: CloudFormation cannot be reached.
        LedgerError: The ledger cannot be read or written.
        ClientError: CloudFormation refused.
    """
    deployed, ledger = read_deployment(stack), find_ledger(client)
    if deployed is None or ledger is None:
        delete_stack(client("cloudformation"), stack["StackId"], report, sleep=sleep)
        return
    deployed = deployed.begun(ledger.get(deployed.run), 0.0)
    teardown = Teardown(
        client,
        ledger,
        lambda subject, text: report(f"{subject}: {text}"),
        now or _aws_clock(client),
    )
    try:
        entry = teardown.order(deployed, REASON)
    except LedgerError as error:
        report(f"{error}; CloudFormation deletes all of it without the order of steps")
        delete_stack(client("cloudformation"), stack["StackId"], report, sleep=sleep)
        return
    told = ""
    while waits_for := teardown.advance(deployed, entry):
        if waits_for != told:
            report(waits_for)
            told = waits_for
        entry = ledger.get(deployed.run) or entry
        if entry.order is not None and entry.order.failures >= _FAILURES_MAX:
            left = find_stack(client("cloudformation"), deployed.stack)
            if left is not None and left["StackStatus"] == "DELETE_FAILED":
                raise TeardownError(what_is_left(client("cloudformation"), left))
            if left is not None and left["StackStatus"] != "DELETE_IN_PROGRESS":
                raise TeardownError(f"{deployed.name} is not being deleted: {waits_for}")
        sleep(POLL_S)


def _aws_clock(client: Client) -> Callable[[], float]:
    """Returns AWS' clock in seconds since 1970, independent of this machine's; exact to the second."""
    answer = ask(lambda: client("sts").get_caller_identity())
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    ahead_s = parsedate_to_datetime(said).timestamp() - time.time() if said else 0.0
    return lambda: time.time() + ahead_s
