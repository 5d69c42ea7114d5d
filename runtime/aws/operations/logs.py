"""``python -m runtime logs``: shows a deployment's log, and what the bucket has of failed boots and of its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.operations.status import iso
from runtime.aws.run_files import RunFiles, find_runs
from runtime.aws.stacks import find_stack
from runtime.names import stack_name
from runtime.records import layout

Report = Callable[[str], None]

POLL_S = 3.0
_LATE_EVENTS_S = 60.0
"""How much later a log event may arrive than others of the same time."""
_LINES_SHOWN = 25


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
    """Shows the log events of an experiment's newest deployment, oldest first, then failed boots and the run's end.

    Log groups are kept for a week, so the stack may be gone.

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
        AccountError, ResultsError: AWS cannot be reached.
    """
    stack, whose = stack_name(experiment), "ActorLogs" if of_actors else "LearnerLogs"
    found = pages_of(
        client("logs"),
        "describe_log_groups",
        "logGroups",
        logGroupNamePrefix=f"{stack}-{whose}",
    )
    if found:
        group = max(found, key=lambda one: one["creationTime"])["logGroupName"]
        shown: set[str] = set()
        since_ms = int(1000 * (now() - since_s))
        while True:
            is_there = ask(lambda: find_stack(client("cloudformation"), stack)) is not None
            since_ms = _show_events(client("logs"), group, since_ms, shown, report)
            if not (is_following and is_there):
                break
            sleep(POLL_S)
        if not shown:
            report(
                f"no events in {group} in the last {since_s / 60:g} minutes; see --since MINUTES"
            )
    else:
        elsewhere = f"; actors on the learner print into {layout.ACTORS_LOG}, see `results`"
        report(f"{stack} has no log group {whose}" + elsewhere * of_actors)
    runs = find_runs(client, experiment)
    newest = max(runs, key=lambda run: run.changed_at_s())
    _show_files(newest, report)


def _show_events(logs: Any, group: str, since_ms: int, shown: set[str], report: Report) -> int:
    """Shows events that are not among those shown; returns the time from which new ones may come."""
    events = pages_of(logs, "filter_log_events", "events", logGroupName=group, startTime=since_ms)
    for event in sorted(events, key=lambda event: event["timestamp"]):
        if event["eventId"] not in shown:
            shown.add(event["eventId"])
            at = iso(event["timestamp"] / 1000)
            report(f"{at} {event['logStreamName']}  {event['message'].rstrip()}")
            since_ms = max(since_ms, event["timestamp"] - int(1000 * _LATE_EVENTS_S))
    return since_ms


def _show_files(run: RunFiles, report: Report) -> None:
    """Shows the ends of the logs of boots that failed, oldest first, and of the events; then why the learner ended."""
    boots = sorted(run.objects("boot/"), key=lambda one: one["LastModified"])
    names = [one["Key"].removeprefix(run.prefix) for one in boots]
    report(run.url)
    for name in (*names, layout.EVENTS, layout.REFUSED, layout.ENDED):
        lines = run.text(name).splitlines()
        if lines:
            report("\n  ".join([name, *lines[-_LINES_SHOWN:]]))
