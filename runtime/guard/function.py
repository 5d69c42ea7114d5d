"""The guard's Lambda function: one look at everything, each minute, and reports to whoever subscribes."""

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
from runtime.guard.check import answer, is_request
from runtime.guard.ledger import Ledger
from runtime.guard.watch import PAUSE_S, TICK_S, Guard
from runtime.names import LEDGER_TABLE_VARIABLE, REPORTS_TOPIC_VARIABLE

_SUBJECT_CHARACTERS = 100
_log = logging.getLogger("nitro.guard")
_log.setLevel(logging.INFO)


def handler(
    event: Mapping[str, Any], context: object, *, client: Client | None = None,
    now: Callable[[], float] = time.time, tick_s: float = TICK_S, pause_s: float = PAUSE_S,
) -> dict[str, Any]:
    """Runs one tick of the guard; with ``{"rehearse": true}`` it only tells what it would do.

    A request of CloudFormation's is answered instead: see `runtime.guard.check`.

    Args:
        event: EventBridge's, whose content does not matter, or CloudFormation's.
        context: Lambda's, which is not used.
        client: Of any service; None makes clients with the function's own rights.
        now: Seconds since 1970.
        tick_s: Seconds for which a tick looks again at what waits in a teardown.
        pause_s: Seconds between two looks.

    Returns:
        As `Guard.tick` does; nothing to CloudFormation.

    Raises:
        RuntimeError: A deployment could not be dealt with, or nobody could be told; an alarm sees that.
    """
    client = client or _clients()
    topic = os.environ[REPORTS_TOPIC_VARIABLE]
    untold: list[str] = []

    def tell(subject: str, text: str) -> None:
        _log.info("%s: %s", subject, text)
        try:
            client("sns").publish(TopicArn=topic, Subject=subject[:_SUBJECT_CHARACTERS], Message=text)
        except AWS_ERRORS as error:
            # Nobody hears of it, but it is done.
            untold.append(f"not reported: {error}")

    ledger = Ledger(client("dynamodb"), os.environ[LEDGER_TABLE_VARIABLE])
    guard = Guard(client, ledger, tell, now=now, tick_s=tick_s, pause_s=pause_s)

    def look(*, is_rehearsed: bool) -> dict[str, Any]:
        seen = guard.tick(is_rehearsed=is_rehearsed)
        _log.info(json.dumps(seen))
        failed = [f"{one['stack']}: {one['error']}" for one in seen["experiments"] if "error" in one]
        if failed or untold:
            raise RuntimeError("; ".join(failed + untold))
        return seen

    if is_request(event):
        answer(event, lambda: [one["stack"] for one in look(is_rehearsed=True)["experiments"]],
               ledger.last_tick_s, now=now, wait_s=2 * tick_s, pause_s=pause_s)
        return {}
    return look(is_rehearsed=bool(event.get("rehearse")))


@cache
def _clients() -> Client:
    """The same ones for all ticks of one process."""
    return clients(patience=PROMPT)
