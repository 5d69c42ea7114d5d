"""``python -m runtime stop``: orders the teardown of an experiment's deployment, and watches the guard carry it out.

It needs only the name; the experiment's file may be changed, broken or gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client, Session, clients, identify
from runtime.aws.guard.check import FRESH_S
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.guard.teardown import GONE, TeardownError, what_is_left
from runtime.aws.ledger import LedgerError, find_ledger
from runtime.aws.stacks import DELETED, find_stack, stack_names
from runtime.names import STACK_PREFIX
from runtime.show.terminal import confirm, laid_out
from runtime.times import INTERVAL_S

REASON = "stopped by hand"
POLL_S = 5.0
_FAILURES_MAX = 2
"""Failed deletions to watch before giving up; the guard continues to try."""


def stop_stack(session: Session, name: str, *, is_asked: bool) -> None:
    """Has the stack ``name`` taken down after confirmation, and returns when it is gone.

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
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Has the guard take an experiment's deployment down, and returns when all of it is gone.

    The caller may stop waiting at any time. CloudFormation alone deletes any other stack, and all of it if there is no
    guard or the guard falls silent.

    Args:
        client: Makes boto3 clients by service name.
        stack: As ``describe_stacks`` returns it.
        report: Receives progress messages.
        sleep: Waits for a number of seconds.

    Raises:
        TeardownError: It could not be deleted completely; the text says what is left and why.
        AccountError: CloudFormation cannot be reached.
        LedgerError: The ledger cannot be read or written.
        ClientError: CloudFormation refused.
    """
    deployed, ledger = read_deployment(stack), find_ledger(client)
    formation = client("cloudformation")
    looked_at_s = ledger.last_tick_s() if ledger else None
    if deployed is None or ledger is None or looked_at_s is None:
        return _delete(formation, stack["StackId"], sleep)
    # The guard finds the order with its next look, by its own clock.
    entry = ledger.order(
        deployed.run, stack=deployed.stack, reason=REASON, now_s=looked_at_s + INTERVAL_S
    )
    report(f"the guard is told: {REASON}")
    done: set[str] = set()
    silent_s = 0.0
    while (order := entry.order_for(deployed.stack)) is not None:
        for step in sorted(order.steps.keys() - done, key=order.steps.__getitem__):
            report(f"done: {step}")
        done = {*order.steps}
        if GONE in done:
            return None
        if order.failures >= _FAILURES_MAX:
            left = find_stack(formation, deployed.stack)
            if left is not None and left["StackStatus"] != "DELETE_IN_PROGRESS":
                raise TeardownError(what_is_left(formation, left))
        before_s, looked_at_s = looked_at_s, ledger.last_tick_s()
        silent_s = silent_s + POLL_S if looked_at_s == before_s else 0.0
        if silent_s > FRESH_S:
            report("the guard does not look; CloudFormation deletes all of it")
            break
        sleep(POLL_S)
        entry = ledger.get(deployed.run) or entry
    return _delete(formation, stack["StackId"], sleep)


def _delete(formation: Any, stack: str, sleep: Callable[[float], None]) -> None:
    """Deletes a stack, and returns when it is gone.

    Raises:
        TeardownError: Some of it is left.
    """
    formation.delete_stack(StackName=stack)
    while (left := find_stack(formation, stack)) is not None:
        if left["StackStatus"] == DELETED:
            return
        if left["StackStatus"] != "DELETE_IN_PROGRESS":
            raise TeardownError(what_is_left(formation, left))
        sleep(POLL_S)
