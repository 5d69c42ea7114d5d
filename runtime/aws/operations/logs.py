"""``python -m runtime logs``: shows a deployment's logs and failed boots, or the bucket's copy."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.asking import ask, ask_if_there, list_all, pages_of
from runtime.aws.clients import Client
from runtime.aws.operations.kept_runs import (
    KeptFile,
    KeptRun,
    find_bucket,
    find_runs,
    newest_first,
)
from runtime.aws.operations.status import iso
from runtime.aws.stacks import find_stack, present, resources_of
from runtime.errors import OperationError
from runtime.names import STACK_PREFIX
from runtime.records import layout

Report = Callable[[str], None]

POLL_S = 3.0
_LATE_EVENTS_S = 60.0
"""How much later a log event may arrive than others of the same time."""
_EVENTS_SHOWN, _BOOT_LINES_SHOWN = 20, 25


def show_logs(
    client: Client,
    experiment: str,
    report: Report,
    *,
    of_actors: bool,
    since_s: float,
    is_following: bool,
    now: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Shows a deployment's log events, oldest first, then failed boots; if its stack is gone, what is kept of both.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Name of the experiment.
        report: Receives each line.
        of_actors: Show the actor function's events, not the learner's.
        since_s: How far back to begin, in seconds.
        is_following: Whether to continue until the stack is gone.
        now: Returns seconds since 1970.
        sleep: Waits for a number of seconds.

    Raises:
        OperationError: There is nothing.
        AccountError: AWS cannot be reached.
    """
    formation = client("cloudformation")
    stack = ask(lambda: find_stack(formation, STACK_PREFIX + experiment))
    whose = "ActorLogs" if of_actors else "LearnerLogs"
    groups = (
        present(
            ask(lambda: resources_of(formation, stack["StackId"])), "AWS::Logs::LogGroup", whose
        )
        if stack
        else _kept_groups(client, experiment, whose)
    )
    if not groups:
        report(
            f"{STACK_PREFIX}{experiment} "
            + ("has no log group yet, or no more" if stack else "is not deployed")
            + (
                f"; actors on the learner print into {layout.ACTORS_LOG}, see `results`"
                if of_actors
                else ""
            )
            + "; what the bucket kept:"
        )
        return show_kept(client, experiment, report)
    tail = _Tail(client("logs"), groups[0], report, since_ms=int(1000 * (now() - since_s)))
    while tail.show() and is_following and _is_there(formation, stack):
        sleep(POLL_S)
    if not tail.shown:
        report(
            f"no events in {groups[0]} in the last {since_s / 60:g} minutes; --since MINUTES goes further back, a "
            "week at most"
        )
    if not _is_there(formation, stack):
        report(f"{STACK_PREFIX}{experiment} is gone; what the bucket kept:")
        show_kept(client, experiment, report)
    elif not of_actors:
        # An instance whose boot fails has no log events.
        for run, files in newest_first(find_runs(client, find_bucket(client), experiment))[:1]:
            _show_failed_boots(run, files, report)
    return None


def _kept_groups(client: Client, experiment: str, whose: str) -> list[str]:
    """Returns the log groups of the experiment's earlier deployments, newest first. They are kept for a week."""
    groups = pages_of(
        client("logs"),
        "describe_log_groups",
        "logGroups",
        logGroupNamePrefix=f"{STACK_PREFIX}{experiment}-{whose}",
    )
    return [
        group["logGroupName"]
        for group in sorted(groups, key=lambda one: one["creationTime"], reverse=True)
    ]


def _is_there(formation: Any, stack: Mapping[str, Any] | None) -> bool:
    found = ask(lambda: find_stack(formation, stack["StackId"])) if stack else None
    return found is not None and found["StackStatus"] != "DELETE_COMPLETE"


class _Tail:
    """One log group's events, each shown once.

    Attributes:
        shown: Number of events shown.
    """

    def __init__(self, client: Any, group: str, report: Report, *, since_ms: int) -> None:
        self._client, self._group, self._report, self._since_ms = client, group, report, since_ms
        self._seen: dict[str, int] = {}
        self.shown = 0

    def show(self) -> bool:
        """Shows new events; returns False if the group is gone.

        Raises:
            AccountError: CloudWatch Logs cannot be reached.
        """
        events = ask_if_there(
            lambda: list_all(
                self._client,
                "filter_log_events",
                "events",
                logGroupName=self._group,
                startTime=self._since_ms,
            )
        )
        if events is None:
            return False
        for event in sorted(events, key=lambda event: event["timestamp"]):
            if event["eventId"] not in self._seen:
                self._tell(event)
        # Late events are searched for again. Ids of older events can be forgotten.
        newest_ms = max((event["timestamp"] for event in events), default=self._since_ms)
        self._since_ms = max(self._since_ms, newest_ms - int(1000 * _LATE_EVENTS_S))
        self._seen = {
            event["eventId"]: event["timestamp"]
            for event in events
            if event["timestamp"] >= self._since_ms
        }
        return True

    def _tell(self, event: Mapping[str, Any]) -> None:
        at = datetime.datetime.fromtimestamp(event["timestamp"] / 1000, datetime.UTC).strftime(
            "%m-%d %H:%M:%S"
        )
        self._report(f"{at} {event['logStreamName']}  {event['message'].rstrip()}")
        self.shown += 1


def show_kept(client: Client, experiment: str, report: Report) -> None:
    """Shows the bucket's copy of the experiment's newest run: boot failures, its end, and its last events.

    Raises:
        OperationError: There is none.
        AccountError: The bucket cannot be read.
    """
    runs = find_runs(client, find_bucket(client), experiment)
    if not runs:
        raise OperationError(f"the bucket has no run of {experiment}")
    run, files = newest_first(runs)[0]
    report(run.url)
    _show_failed_boots(run, files, report)
    for name in ("refused.json", "ended.json"):
        if name in files:
            report(f"\n{name}")
            for line in run.text(name).splitlines():
                report(f"  {line}")
    events = run.text(layout.EVENTS).splitlines()[-_EVENTS_SHOWN:]
    if events:
        report("\nevents.jsonl, the end")
        for line in events:
            report(f"  {line}")


def _show_failed_boots(run: KeptRun, files: Mapping[str, KeptFile], report: Report) -> None:
    """Shows the end of the log of each boot that failed, oldest first."""
    boots = [name for name in files if name.startswith("boot/")]
    for name in sorted(boots, key=lambda name: files[name].changed_at_s):
        report(f"\n{name}, {iso(files[name].changed_at_s)}")
        for line in run.text(name).splitlines()[-_BOOT_LINES_SHOWN:]:
            report(f"  {line}")
