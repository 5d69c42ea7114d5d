"""``make first-deployment``: spends five cents on purpose, watches the guard take it down, and writes a report.

Arguments go to ``python -m stacks.deploy``. The report has no account id, no key and no address.
"""

from __future__ import annotations

import io
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runtime.aws.asking import AccountError, ask, ask_if_there, pages_of
from runtime.aws.clients import Client, clients, identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.aws.guard.parts import find_instances, is_there
from runtime.aws.guard.teardown import GONE
from runtime.aws.ledger import Entry, find_ledger
from runtime.aws.operations.logs import show_logs
from runtime.aws.operations.status import survey
from runtime.aws.stacks import find_stack, resources_of
from runtime.errors import OperationError, RunError
from runtime.experiment.loading import load_experiment
from runtime.names import EXPERIMENT_TAG, SHARED_STACKS, stack_name
from runtime.show.terminal import printable
from stacks.deploy import command
from stacks.deploy.cdk import context_value

EXPERIMENT = Path(__file__).with_name("first-deployment.yaml")
REPORT = Path("first-deployment.txt")
POLL_S = 10.0
PATIENCE_S = 5400.0
"""How long to watch. The guard's own limits for a deployment that hangs are shorter."""
_BOOTSTRAP_VERSION = 6
"""The lowest that the templates accept: aws-cdk-lib, ``BOOTSTRAP_MIN_VERSION``."""
_LINES_MAX = 400
_DENIED = re.compile(r"AccessDenied|not authorized|UnauthorizedOperation|Forbidden")
_SECRETS = (
    (r"\b\d{12}\b", "ACCOUNT"),
    (r"\b(AKIA|ASIA)[A-Z0-9]{16}\b", "KEY"),
    (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "ADDRESS"),
    (r"(?<![\w/+=])(?=[\w/+=]*[a-z])(?=[\w/+=]*[A-Z])(?=[\w/+=]*\d)[\w/+=]{40,}", "SECRET"),
)
"""Patterns that never reach the report: account ids, access keys, mail addresses, and texts that look like secrets."""


def without_secrets(text: str) -> str:
    """Replaces account ids, keys, mail addresses, and texts that look like secrets."""
    for pattern, instead in _SECRETS:
        text = re.sub(pattern, instead, text)
    return text


class DeploymentReport(io.TextIOBase):
    """A file for the people who wrote this, complete after each line. Also a stream that repeats on the terminal.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        """Begins the file; an older one is replaced."""
        self.path, self._terminal, self._began_s = path, sys.stdout, time.time()
        path.write_text("")

    def step(self, name: str) -> None:
        """Begins a step."""
        self.write(f"\n== {name}, after {time.time() - self._began_s:.0f} s\n")

    def say(self, text: str) -> None:
        """Adds a line."""
        self.write(f"{time.time() - self._began_s:6.0f} s  {text}\n")

    def write(self, text: str) -> int:
        """Adds text. Only the terminal shows secrets."""
        self._terminal.write(text)
        self._terminal.flush()
        self.note(text)
        return len(text)

    def note(self, text: str) -> None:
        """Adds text that the terminal does not show."""
        with self.path.open("a") as file:
            file.write(without_secrets(printable(text)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Walks through a first deployment. Returns 0 if it ended as promised, 2 if not, or 130 after Ctrl-C."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & {*words}:
        print(__doc__)
        return 0
    report = DeploymentReport(REPORT)
    try:
        return _walk(words, report)
    except (RunError, BotoCoreError, OSError) as error:
        report.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        name = EXPERIMENT.stem
        report.say(f"interrupted; the guard goes on. `python -m runtime stop {name}` ends it now")
        return 130
    finally:
        report.write(
            f"\nThe report is {report.path.resolve()}. Please read it, and send it back.\n"
        )


def _walk(words: Sequence[str], report: DeploymentReport) -> int:
    report.step("account")
    session = open_session()
    account, region = identify(session), str(session.region_name)
    client = clients(session)
    report.say(
        f"{region}; Python {platform.python_version()}, boto3 {version('boto3')}, {platform.platform()}"
    )
    report.step("bootstrap")
    report.say(f"version {check_bootstrap(client)}")
    report.step("deployment")
    notified = [] if {"--mail", "--no-mail"} & set(words) else ["--no-mail"]
    began_s = time.time()
    with redirect_stdout(report), redirect_stderr(report):
        code = command.main([str(EXPERIMENT), *notified, *words])
    report.say(f"make deploy ended with {code}")
    stack = newest_stack(client, stack_name(EXPERIMENT.stem), since_s=began_s)
    if stack is None:
        return code or 2
    resources = ask(lambda: resources_of(client("cloudformation"), stack))
    report.step("until the guard has ended it")
    instances: set[str] = set()
    entry = watch(client, stack, report, account=account, region=region, instances=instances)
    report.step("Describe")
    problems = find_problems(client, stack, entry, resources)
    for problem in problems or ["nothing is left, and the budget held"]:
        report.say(problem)
    report.step("for those who wrote this")
    _add_evidence(client, stack, instances, report, since_s=time.time() - began_s)
    report.step("as promised" if not (code or problems) else "NOT as promised")
    return 2 if code or problems else 0


def check_bootstrap(client: Client) -> int:
    """Returns the version of the CDK's bootstrap in this account and region.

    Raises:
        AccountError: There is none, or it is too old.
    """
    qualifier = context_value([], "@aws-cdk/core:bootstrapQualifier") or "hnb659fds"
    name = f"/cdk-bootstrap/{qualifier}/version"
    found = ask_if_there(lambda: client("ssm").get_parameter(Name=name))
    number = int(found["Parameter"]["Value"]) if found else 0
    if number < _BOOTSTRAP_VERSION:
        raise AccountError(
            f"{name} is {number or 'not there'}; allowed: from {_BOOTSTRAP_VERSION}. "
            "Nothing was deployed; `make bootstrap` once per account and region"
        )
    return number


def newest_stack(client: Client, name: str, *, since_s: float) -> str | None:
    """Returns the id of the newest stack of that name created since then, deleted or not; None if there is none."""
    found = [
        one
        for one in pages_of(client("cloudformation"), "list_stacks", "StackSummaries")
        if one["StackName"] == name and one["CreationTime"].timestamp() >= since_s - 1.0
    ]
    return max(found, key=lambda one: one["CreationTime"])["StackId"] if found else None


def watch(
    client: Client,
    stack: str,
    report: DeploymentReport,
    *,
    account: str,
    region: str,
    instances: set[str],
) -> Entry | None:
    """Reports each change until the guard has found that the deployment is gone, or `PATIENCE_S` are over.

    Args:
        client: Makes boto3 clients by service name.
        stack: The stack's id.
        report: Receives the changes.
        account, region: The client's.
        instances: Receives the ids of the learner's instances.

    Returns:
        The run's entry in the ledger; None if it has none.
    """
    name, last, entry = EXPERIMENT.stem, "", None
    until_s = time.time() + PATIENCE_S
    while time.time() < until_s:
        with suppress(OperationError):
            document = survey(client, name, account=account, region=region, now_s=time.time())
            instances |= {
                one["instance_id"]
                for found in document["deployments"]
                for one in found["instances"]
            }
            now = _progress(document)
            if now != last:
                report.say(now)
                last = now
        entry = _entry_of(client, stack)
        order = entry.order_for(stack) if entry else None
        if order is not None and GONE in order.steps:
            report.say(f"the guard ended it: {order.reason}")
            for step, at_s in sorted(order.steps.items(), key=lambda one: one[1]):
                report.say(f"{step} after {at_s - order.ordered_at_s:.0f} s")
            return entry
        time.sleep(POLL_S)
    report.say(f"it is not gone after {PATIENCE_S / 60:.0f} minutes")
    return entry


def _entry_of(client: Client, stack: str) -> Entry | None:
    ledger = find_ledger(client)
    entries = ledger.entries() if ledger else []
    return next((one for one in entries if one.order_for(stack) or one.stack == stack), None)


def _progress(document: Mapping[str, Any]) -> str:
    """Describes a deployment without figures that change by themselves."""
    if not document["deployments"]:
        return "the stack is gone"
    (one,) = document["deployments"]
    machines = ", ".join(f"{each['instance_type']} {each['state']}" for each in one["instances"])
    parts = [
        one["stack_status"],
        machines or "no instance",
        f"learner {one['state'] or 'not heard of'}",
        one["reason"],
        f"${one['spent_usd']:.3f} of ${one['budget_usd']:g}",
        f"round {one['round']['round_index']}" if one.get("round") else "",
        f"taken down: {one['order']['reason']}" if one["order"] else "",
    ]
    return "; ".join(part for part in parts if part)


def find_problems(
    client: Client, stack: str, entry: Entry | None, resources: Iterable[Mapping[str, Any]]
) -> list[str]:
    """Returns promises that were not kept, each in one line: Describe finds a part, or the budget was exceeded.

    Args:
        client: Makes boto3 clients by service name.
        stack: The stack's id.
        entry: The run's entry in the ledger.
        resources: The stack's, as CloudFormation listed them while it was there.
    """
    found = ask(lambda: find_stack(client("cloudformation"), stack))
    status = found["StackStatus"] if found else "DELETE_COMPLETE"
    left = [] if status == "DELETE_COMPLETE" else [f"the stack ({status})"]
    left += ask(lambda: find_instances(client("ec2"), EXPERIMENT_TAG, EXPERIMENT.stem))
    tagged = [{"Name": f"tag:{EXPERIMENT_TAG}", "Values": [EXPERIMENT.stem]}]
    left += [
        one["VolumeId"]
        for one in pages_of(client("ec2"), "describe_volumes", "Volumes", Filters=tagged)
    ]
    made = {
        kind: [
            str(one["PhysicalResourceId"])
            for one in resources
            if one["ResourceType"] == kind and one.get("PhysicalResourceId")
        ]
        for kind in ("AWS::Lambda::Function", "AWS::AutoScaling::AutoScalingGroup")
    }
    functions = made["AWS::Lambda::Function"]
    left += ask(lambda: [name for name in functions if is_there(client("lambda"), name)])
    groups = made["AWS::AutoScaling::AutoScalingGroup"]
    left += [
        one["AutoScalingGroupName"]
        for one in pages_of(
            client("autoscaling"), "describe_auto_scaling_groups", "AutoScalingGroups"
        )
        if one["AutoScalingGroupName"] in groups
    ]
    problems = [f"left: {', '.join(left)}"] if left else []
    if entry is None:
        return [*problems, "the guard's ledger has no entry of the run"]
    budget_usd = load_experiment(EXPERIMENT).budget.usd
    if entry.spent_usd > budget_usd:
        problems.append(f"the ledger has ${entry.spent_usd:.4f} of ${budget_usd:g}")
    # The learner ends when no further round fits. The guard ends it if the parts' dollars come first.
    if "budget" not in entry.reason:
        problems.append(f"the run ended, but not because its budget was used up: {entry.reason}")
    return problems


def _add_evidence(
    client: Client,
    stack: str,
    instances: Iterable[str],
    report: DeploymentReport,
    *,
    since_s: float,
) -> None:
    """Adds the stacks' events, the instances' console output, the logs, and each line about a missing right."""
    lines: list[str] = []

    def console_of(instance: str) -> list[str]:
        found = ask(lambda: client("ec2").get_console_output(InstanceId=instance))
        return str(found.get("Output", "")).splitlines()

    def log_of(*, of_actors: bool) -> list[str]:
        log: list[str] = []
        show_logs(
            client,
            EXPERIMENT.stem,
            log.append,
            of_actors=of_actors,
            since_s=since_s,
            is_following=False,
            now=time.time,
            sleep=time.sleep,
        )
        return log

    def add(title: str, read: Callable[[], list[str]]) -> None:
        lines.extend(["", f"-- {title}"])
        try:
            lines.extend(read()[-_LINES_MAX:])
        except RunError as error:
            lines.append(str(error))

    for name in (*SHARED_STACKS, stack):
        add(f"events of {name}", partial(events_of, client, name))
    for instance in sorted(instances):
        add(f"boot of {instance}, by its console", partial(console_of, instance))
    add("log of the learner", partial(log_of, of_actors=False))
    add("log of the actors", partial(log_of, of_actors=True))
    report.note("\n".join([*lines, ""]))
    denied = [line for line in lines if _DENIED.search(line)]
    report.say(f"{len(denied)} lines may be about a missing right")
    report.note("".join(f"{line}\n" for line in denied))


def events_of(client: Client, stack: str) -> list[str]:
    """Returns a stack's events, oldest first, with seconds since the first: how long each resource took."""
    found = pages_of(
        client("cloudformation"), "describe_stack_events", "StackEvents", StackName=stack
    )
    ordered = sorted(found, key=lambda one: one["Timestamp"])
    return [
        f"{(one['Timestamp'] - ordered[0]['Timestamp']).total_seconds():6.0f} s  "
        f"{one['LogicalResourceId']} {one['ResourceType']} {one['ResourceStatus']} "
        f"{one.get('ResourceStatusReason', '')}".rstrip()
        for one in ordered
    ]


if __name__ == "__main__":
    sys.exit(main())
