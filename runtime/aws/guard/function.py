"""The guard's Lambda function: looks at all deployments every minute and sends reports to subscribers."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from runtime.aws.clients import PROMPT, Client, clients
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.guard.check import Check, is_request
from runtime.aws.guard.watch import PAUSE_S, TICK_S, Guard
from runtime.aws.ledger import Ledger
from runtime.names import LEDGER_TABLE_VARIABLE, REPORTS_TOPIC_VARIABLE

_SUBJECT_CHARACTERS = 100
_log = logging.getLogger("nitro.guard")
_log.setLevel(logging.INFO)


def handler(
    event: Mapping[str, Any],
    context: object,
    *,
    client: Client | None = None,
    now: Callable[[], float] = time.time,
    tick_s: float = TICK_S,
    pause_s: float = PAUSE_S,
) -> dict[str, Any]:
    """Runs one tick of the guard.

    A request from CloudFormation is answered instead: see `runtime.aws.guard.check`.

    Args:
        event: EventBridge's, whose content is ignored, or CloudFormation's.
        context: Lambda's; unused.
        client: Makes boto3 clients by service name; None uses the function's own rights.
        now: Returns seconds since 1970.
        tick_s: Seconds for which a tick checks waiting teardowns again.
        pause_s: Seconds between two checks.

    Returns:
        The result of `Guard.tick`; empty for CloudFormation.

    Raises:
        RuntimeError: In a tick: a deployment could not be handled, or a report could not be sent. This triggers an
            alarm.
    """
    client = client or _clients()
    topic = os.environ[REPORTS_TOPIC_VARIABLE]
    untold: list[str] = []

    def tell(subject: str, text: str) -> None:
        _log.info("%s: %s", subject, text)
        try:
            client("sns").publish(
                TopicArn=topic, Subject=subject[:_SUBJECT_CHARACTERS], Message=text
            )
        except AWS_ERRORS as error:
            # The report is lost, but the work is done.
            untold.append(f"not reported: {error}")

    ledger = Ledger(client("dynamodb"), os.environ[LEDGER_TABLE_VARIABLE])
    guard = Guard(client, ledger, tell, now=now, tick_s=tick_s, pause_s=pause_s)

    def look(**how: Any) -> dict[str, Any]:
        seen = guard.tick(**how)
        _log.info(json.dumps(seen))
        return seen

    if is_request(event):
        check = Check(
            client,
            lambda stack: {
                one["stack"]: one for one in look(is_rehearsed=True, asking=stack)["experiments"]
            },
            ledger.last_tick_s,
            now=now,
            wait_s=2 * tick_s,
            pause_s=pause_s,
        )
        check.answer(event)
        return {}
    seen = look()
    failed = [f"{one['stack']}: {one['error']}" for one in seen["experiments"] if "error" in one]
    if failed or untold:
        raise RuntimeError("; ".join(failed + untold))
    return seen


@cache
def _clients() -> Client:
    """Makes clients once for all ticks of a process."""
    return clients(patience=PROMPT)
