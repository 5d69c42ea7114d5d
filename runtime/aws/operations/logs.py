"""``python -m runtime logs``: shows a deployment's log, and what the bucket has of failed boots and of its end."""

from __future__ import annotations

from collections.abc import Callable

from runtime.aws.asking import pages_of
from runtime.aws.clients import Client
from runtime.aws.operations.status import iso
from runtime.aws.run_files import RunFiles, find_runs
from runtime.names import stack_name
from runtime.records import layout

Report = Callable[[str], None]

_LINES_SHOWN = 25


def show_logs(
    client: Client,
    experiment: str,
    report: Report,
    *,
    of_actors: bool,
    since_s: float,
    now_s: float,
) -> None:
    """Shows the log events of an experiment's newest deployment, oldest first, then failed boots and the run's end.

    Log groups are kept for a week, so the stack may be gone.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Name of the experiment.
        report: Receives each line.
        of_actors: Show the actor function's events, not the learner's.
        since_s: How far back to begin, in seconds.
        now_s: Seconds since 1970.

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
        events = pages_of(
            client("logs"),
            "filter_log_events",
            "events",
            logGroupName=group,
            startTime=int(1000 * (now_s - since_s)),
        )
        for event in sorted(events, key=lambda event: event["timestamp"]):
            at = iso(event["timestamp"] / 1000)
            report(f"{at} {event['logStreamName']}  {event['message'].rstrip()}")
        said = f"{len(events)} events in the last {since_s / 60:g} minutes; see --since MINUTES"
        report(f"{said}. Follow them with aws logs tail {group} --follow")
    else:
        elsewhere = f"; actors on the learner print into {layout.ACTORS_LOG}, see `results`"
        report(f"{stack} has no log group {whose}" + elsewhere * of_actors)
    runs = find_runs(client, experiment)
    newest = max(runs, key=lambda run: run.changed_at_s())
    _show_files(newest, report)


def _show_files(run: RunFiles, report: Report) -> None:
    """Shows the ends of the logs of boots that failed, oldest first, and of the events; then why the learner ended."""
    boots = sorted(run.objects("boot/"), key=lambda one: one["LastModified"])
    names = [one["Key"].removeprefix(run.prefix) for one in boots]
    report(run.url)
    for name in (*names, layout.EVENTS, layout.REFUSED, layout.ENDED):
        lines = run.text(name).splitlines()
        if lines:
            report("\n  ".join([name, *lines[-_LINES_SHOWN:]]))
