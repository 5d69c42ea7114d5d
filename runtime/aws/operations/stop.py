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
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.guard.teardown import Teardown, TeardownError, what_is_left
from runtime.aws.ledger import LedgerError, find_ledger
from runtime.aws.stacks import find_stack, stack_names
from runtime.names import STACK_PREFIX
from runtime.show.terminal import confirm, laid_out

REASON = "stopped by hand"
POLL_S = 5.0
_FAILURES_MAX = 2
"""Failed deletions to watch before giving up; the guard continues to try."""


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
        others = ask(lambda: stack_names(formation, STACK_PREFIX))
        raise AccountError(
            f"no stack {name} in account {account_id}, region {session.region_name}; there are: "
            f"{', '.join(others) or 'none'}. Another region is named by AWS_DEFAULT_REGION, another account by "
            "AWS_PROFILE"
        )
    facts = {
        "account": f"{account_id}, {session.region_name}",
        "stack": f"{name}, {stack['StackStatus']}",
        "stays": "the results bucket, and other shared stacks",
    }
    print("\n".join(laid_out(facts)), flush=True)
    if is_asked:
        confirm("Delete it? It takes about ten minutes.", "nothing was deleted")
    try:
        ask(lambda: take_down(client, stack, lambda line: print(f"  {line}", flush=True)))
    except (AccountError, LedgerError) as error:
        raise TeardownError(f"{error}. What has begun continues in AWS") from error
    print(f"{name} is gone", flush=True)


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
    formation = client("cloudformation")
    if deployed is None or ledger is None:
        return _delete(formation, stack["StackId"], sleep)
    deployed = deployed.begun(ledger.get(deployed.run), 0.0)
    now = now or _aws_clock(client)
    teardown = Teardown(client, ledger, lambda subject, text: report(f"{subject}: {text}"), now)
    try:
        entry = teardown.order(deployed, REASON)
    except LedgerError as error:
        report(f"{error}; CloudFormation deletes all of it without the order of steps")
        return _delete(formation, stack["StackId"], sleep)
    told = ""
    while waits_for := teardown.advance(deployed, entry):
        if waits_for != told:
            report(waits_for)
            told = waits_for
        entry = ledger.get(deployed.run) or entry
        if entry.order is not None and entry.order.failures >= _FAILURES_MAX:
            left = find_stack(formation, deployed.stack)
            if left is not None and left["StackStatus"] != "DELETE_IN_PROGRESS":
                raise TeardownError(f"{what_is_left(formation, left)}; {waits_for}")
        sleep(POLL_S)
    return None


def _delete(formation: Any, stack: str, sleep: Callable[[float], None]) -> None:
    """Deletes a stack, and returns when it is gone.

    Raises:
        TeardownError: Some of it is left.
    """
    formation.delete_stack(StackName=stack)
    while (left := find_stack(formation, stack)) is not None:
        if left["StackStatus"] == "DELETE_COMPLETE":
            return
        if left["StackStatus"] != "DELETE_IN_PROGRESS":
            raise TeardownError(what_is_left(formation, left))
        sleep(POLL_S)


def _aws_clock(client: Client) -> Callable[[], float]:
    """Returns AWS' clock in seconds since 1970, independent of this machine's; exact to the second."""
    answer = ask(lambda: client("sts").get_caller_identity())
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    ahead_s = parsedate_to_datetime(said).timestamp() - time.time() if said else 0.0
    return lambda: time.time() + ahead_s
