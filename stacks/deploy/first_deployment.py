"""``make first-deployment``: spends five cents on purpose, watches the guard take it down, and writes a report.

More arguments go to ``python -m stacks.deploy``. The report has no account id, key, address or path of this machine.
"""

from __future__ import annotations

import argparse
import io
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.metadata import version
from pathlib import Path

from runtime.aws.asking import AccountError, ask, ask_if_there, pages_of
from runtime.aws.clients import Client, clients, identify, open_session
from runtime.aws.failures import BotoCoreError
from runtime.aws.guard.parts import find_instances
from runtime.aws.guard.teardown import GONE
from runtime.aws.ledger import Entry, Ledger, find_ledger
from runtime.aws.operations.logs import show_logs
from runtime.aws.stacks import DELETED, find_stack
from runtime.errors import RunError
from runtime.experiment.loading import load_experiment
from runtime.names import EXPERIMENT_TAG, SHARED_STACKS, run_key
from runtime.show.terminal import printable, spent_of
from stacks.deploy import command
from stacks.deploy.cdk import ROOT, context_value

EXPERIMENT = Path(__file__).with_name("first-deployment.yaml")
NAME, BUDGET_USD = EXPERIMENT.stem, load_experiment(EXPERIMENT).budget.usd
REPORT = Path("first-deployment.txt")
POLL_S = 10.0
PATIENCE_S = 5400.0
"""How long to watch. The guard's own limits for a deployment that hangs are shorter."""
_BOOTSTRAP_VERSION = 6
"""The lowest that the templates accept: aws-cdk-lib, ``BOOTSTRAP_MIN_VERSION``."""
_LINES_MAX = 400
_TAGGED = [{"Name": f"tag:{EXPERIMENT_TAG}", "Values": [NAME]}]
_DENIED = re.compile(r"AccessDenied|not authorized|UnauthorizedOperation|Forbidden")
_SECRETS = (
    (re.escape(str(ROOT)), "CHECKOUT"),
    (re.escape(str(Path.home())) + r"\b", "HOME"),
    (r"\b\d{12}\b", "ACCOUNT"),
    (r"\b(AKIA|ASIA)[A-Z0-9]{16}\b", "KEY"),
    (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "ADDRESS"),
    (r"(?<![\w/+=])(?=[\w/+=]*[a-z])(?=[\w/+=]*[A-Z])(?=[\w/+=]*\d)[\w/+=]{40,}", "SECRET"),
)
"""Patterns that never reach the report: paths of this machine, account ids, access keys, mail addresses, and texts that
look like secrets."""


def without_secrets(text: str) -> str:
    """Replaces this machine's paths, account ids, keys, mail addresses, and texts that look like secrets."""
    for pattern, instead in _SECRETS:
        text = re.sub(pattern, instead, text)
    return text


class DeploymentReport(io.TextIOBase):
    """A file for the people who wrote this, complete after each line, and a stream that also shows on the terminal."""

    def __init__(self, path: Path) -> None:
        """Begins the file; an older one is replaced."""
        self._path, self._terminal = path, sys.stdout
        self._began_s = time.time()
        path.write_text("")

    def say(self, text: str) -> None:
        """Adds a line, with the seconds since the beginning."""
        self.write(f"{time.time() - self._began_s:6.0f} s  {text}\n")

    def write(self, text: str) -> int:
        """Adds text. Only the terminal shows secrets."""
        self._terminal.write(text)
        self._terminal.flush()
        return self.note(text)

    def note(self, text: str) -> int:
        """Adds text that the terminal does not show."""
        with self._path.open("a") as file:
            return file.write(without_secrets(printable(text)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Walks through a first deployment. Returns 0 if it ended as promised, 2 if not, or 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make first-deployment", description=__doc__)
    parser.add_argument(
        "--run",
        default=time.strftime("%Y%m%d-%H%M%S"),
        help="name of the run (default: %(default)s)",
    )
    options, words = parser.parse_known_args(arguments)
    report = DeploymentReport(REPORT)
    try:
        return _walk(options.run, words, report)
    except (RunError, BotoCoreError, OSError) as error:
        report.say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        report.say(f"interrupted; the guard goes on. `python -m runtime stop {NAME}` ends it now")
        return 130
    finally:
        report.write(f"\nThe report is {REPORT}. Please read it, and send it back.\n")


def _walk(run: str, words: Sequence[str], report: DeploymentReport) -> int:
    session = open_session()
    identify(session)
    client = clients(session)
    report.say(
        f"== {session.region_name}; Python {platform.python_version()}, boto3 {version('boto3')}"
    )
    report.say(f"== bootstrap: version {check_bootstrap(client)}")
    report.say("== deployment")
    notified = [] if {"--mail", "--no-mail"} & set(words) else ["--no-mail"]
    began_s = time.time()
    with redirect_stdout(report), redirect_stderr(report):
        code = command.main([str(EXPERIMENT), "--run", run, *notified, *words])
    report.say(f"== make deploy ended with {code}")
    ledger, key = find_ledger(client), run_key(NAME, run)
    if ledger is None or ledger.get(key) is None:
        return code or 2
    entry = watch(ledger, key, report)
    problems = find_problems(client, entry)
    for problem in problems or ["nothing is left, and the budget held"]:
        report.say(problem)
    _add_evidence(client, entry.stack, report, since_s=time.time() - began_s)
    report.say("== NOT as promised" if code or problems else "== as promised")
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


def watch(ledger: Ledger, key: str, report: DeploymentReport) -> Entry:
    """Reports each change until the guard has found that the deployment is gone, or `PATIENCE_S` are over.

    Returns:
        The run's entry in the ledger, as it was read last.
    """
    last, until_s = "", time.time() + PATIENCE_S
    while True:
        entry = ledger.get(key) or Entry(key)
        order = entry.order_for(entry.stack)
        now = f"learner {entry.state or 'not heard of'}, {spent_of(entry.spent_usd, BUDGET_USD)}"
        now += f"; taken down: {order.reason}" if order else f" {entry.reason}"
        if now != last:
            report.say(now)
            last = now
        if order is not None and GONE in order.steps:
            for step, at_s in sorted(order.steps.items(), key=lambda done: done[1]):
                report.say(f"{step} after {at_s - order.ordered_at_s:.0f} s")
            return entry
        if time.time() > until_s:
            report.say(f"it is not gone after {PATIENCE_S / 60:.0f} minutes")
            return entry
        time.sleep(POLL_S)


def find_problems(client: Client, entry: Entry) -> list[str]:
    """Returns promises that were not kept, each in one line: Describe finds a part, or the budget was exceeded.

    CloudFormation has deleted all parts that have no tag or cost nothing, if it has deleted the stack.

    Args:
        client: Makes boto3 clients by service name.
        entry: The run's entry in the ledger.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), entry.stack)) or {}
    left = [
        f"stack {status}" for status in [stack.get("StackStatus")] if status not in (None, DELETED)
    ]
    left += ask(lambda: find_instances(client("ec2"), EXPERIMENT_TAG, NAME))
    volumes = pages_of(client("ec2"), "describe_volumes", "Volumes", Filters=_TAGGED)
    left += [volume["VolumeId"] for volume in volumes]
    problems = [f"left: {', '.join(left)}"] if left else []
    if entry.spent_usd > BUDGET_USD:
        problems.append(f"the ledger has ${entry.spent_usd:.4f} of ${BUDGET_USD:g}")
    # The learner ends when no further round fits. The guard ends it if the parts' dollars come first.
    if "budget" not in entry.reason:
        problems.append(f"the run ended, but not because its budget was used up: {entry.reason}")
    return problems


def _add_evidence(client: Client, stack: str, report: DeploymentReport, *, since_s: float) -> None:
    """Adds the stacks' events, the instances' console output, the logs, and each line about a missing right."""
    lines: list[str] = []

    def add(title: str, read: Callable[[], list[str]]) -> None:
        lines.extend(["", f"-- {title}"])
        try:
            lines.extend(read()[-_LINES_MAX:])
        except RunError as error:
            lines.append(str(error))

    for name in (*SHARED_STACKS, stack):
        add(f"events of {name}", partial(events_of, client, name))
    # EC2 describes an instance for an hour after its end.
    for started in pages_of(client("ec2"), "describe_instances", "Reservations", Filters=_TAGGED):
        instance = started["Instances"][0]["InstanceId"]
        add(f"boot of {instance}, by its console", partial(_console_of, client, instance))
    for whose in ("learner", "actors"):
        read = partial(_log_of, client, of_actors=whose == "actors", since_s=since_s)
        add(f"log of the {whose}", read)
    denied = [line for line in lines if _DENIED.search(line)]
    report.say(f"{len(denied)} lines may be about a missing right")
    report.note("\n".join([*denied, *lines, ""]))


def events_of(client: Client, stack: str) -> list[str]:
    """Returns a stack's events, oldest first, with seconds since the first: how long each resource took."""
    formation = client("cloudformation")
    found = pages_of(formation, "describe_stack_events", "StackEvents", StackName=stack)
    ordered = sorted(found, key=lambda event: event["Timestamp"])
    return [
        f"{(event['Timestamp'] - ordered[0]['Timestamp']).total_seconds():6.0f} s  "
        f"{event['LogicalResourceId']} {event['ResourceType']} {event['ResourceStatus']} "
        f"{event.get('ResourceStatusReason', '')}".rstrip()
        for event in ordered
    ]


def _console_of(client: Client, instance: str) -> list[str]:
    found = ask(lambda: client("ec2").get_console_output(InstanceId=instance))
    return str(found.get("Output", "")).splitlines()


def _log_of(client: Client, *, of_actors: bool, since_s: float) -> list[str]:
    lines: list[str] = []
    show_logs(
        client,
        NAME,
        lines.append,
        of_actors=of_actors,
        since_s=since_s,
        is_following=False,
        now=time.time,
        sleep=time.sleep,
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
