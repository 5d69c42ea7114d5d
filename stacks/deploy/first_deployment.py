"""``make first-deployment``: spends five cents on purpose, watches the guard take it down, and writes a report.

More arguments go to ``python -m stacks.deploy``. The report has no account id, key, address or path of this machine.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from runtime.aws.asking import AccountError, ask, pages_of
from runtime.aws.clients import Client, clients, open_session
from runtime.aws.failures import BotoCoreError
from runtime.aws.guard.parts import find_instances
from runtime.aws.guard.teardown import GONE
from runtime.aws.ledger import Entry, Ledger, find_ledger
from runtime.aws.operations.logs import show_logs
from runtime.aws.stacks import DELETED, find_stack
from runtime.errors import RunError
from runtime.experiment.loading import load_experiment
from runtime.names import EXPERIMENT_TAG, SHARED_STACKS, run_key, stack_name
from runtime.show.terminal import printable, spent_of
from stacks.deploy import command
from stacks.deploy.cdk import ROOT

EXPERIMENT = Path(__file__).with_name("first-deployment.yaml")
NAME, BUDGET_USD = EXPERIMENT.stem, load_experiment(EXPERIMENT).budget.usd
REPORT = Path("first-deployment.txt")
POLL_S = 10.0
PATIENCE_S = 5400.0
"""How long to watch. The guard's own limits for a deployment that hangs are shorter."""
_TAGGED = [{"Name": f"tag:{EXPERIMENT_TAG}", "Values": [NAME]}]
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
    """A stream that shows text on the terminal, and keeps it for the report."""

    def __init__(self) -> None:
        self.text = ""
        self._terminal = sys.stdout
        self._began_s = time.time()

    def write(self, text: str) -> int:
        """Adds text. Only the terminal shows secrets."""
        self._terminal.write(text)
        self._terminal.flush()
        self.text += text
        return len(text)

    def say(self, text: str) -> None:
        """Adds a line, with the seconds since the beginning."""
        self.write(f"{time.time() - self._began_s:6.0f} s  {text}\n")

    def note(self, text: str) -> None:
        """Adds a line that the terminal does not show."""
        self.text += f"{text}\n"

    def save(self, path: Path) -> None:
        """Writes the report; an older one is replaced."""
        path.write_text(without_secrets(printable(self.text)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Walks through a first deployment.

    Returns:
        0 if it ended as promised, 1 if not, 2 without a report if nothing was deployed, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="make first-deployment", description=__doc__)
    parser.add_argument(
        "--run",
        default=time.strftime("%Y%m%d-%H%M%S"),
        help="name of the run (default: %(default)s)",
    )
    options, words = parser.parse_known_args(arguments)
    report = DeploymentReport()
    with redirect_stdout(report), redirect_stderr(report):
        code = command.main([str(EXPERIMENT), "--run", options.run, *words])
    if code == 2:
        return code
    try:
        report.say(f"== make deploy ended with {code}")
        problems = _watch_to_the_end(options.run, report)
        report.say("== NOT as promised" if code or problems else "== as promised")
        return 1 if code or problems else 0
    except (RunError, BotoCoreError, OSError) as error:
        report.say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        report.say(f"interrupted; the guard continues. `python -m runtime stop {NAME}` ends it now")
        return 130
    finally:
        report.save(REPORT)
        print(f"\nThe report is {REPORT}. Please read it, and send it back.")


def _watch_to_the_end(run: str, report: DeploymentReport) -> list[str]:
    """Watches the run until it is gone, and adds all that AWS tells about it. Returns promises that were not kept."""
    client, key = clients(open_session()), run_key(NAME, run)
    ledger = find_ledger(client)
    stack, problems = stack_name(NAME), ["the guard has not noticed the run"]
    if ledger is not None and ledger.get(key) is not None:
        entry = watch(ledger, key, report)
        stack, problems = entry.stack, find_problems(client, entry)
    for text in problems or ["nothing is left, and the budget held"]:
        report.say(text)
    for name in (*SHARED_STACKS, stack):
        report.note(f"\n-- events of {name}")
        for line in events_of(client, name):
            report.note(line)
    # EC2 describes an instance for an hour after its end.
    for started in pages_of(client("ec2"), "describe_instances", "Reservations", Filters=_TAGGED):
        instance = started["Instances"][0]["InstanceId"]
        console = ask(partial(client("ec2").get_console_output, InstanceId=instance))
        report.note(f"\n-- boot of {instance}, by its console\n{console.get('Output', '')}")
    for of_actors in (False, True):
        report.note(f"\n-- log of the {'actors' if of_actors else 'learner'}")
        show_logs(
            client,
            NAME,
            report.note,
            of_actors=of_actors,
            since_s=PATIENCE_S,
            now_s=time.time(),
        )
    return problems


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
    status = stack.get("StackStatus", DELETED)
    left = [f"stack {status}"] if status != DELETED else []
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


def events_of(client: Client, stack: str) -> list[str]:
    """Returns a stack's events, oldest first, with seconds since the first; AWS' answer if there never was one."""
    try:
        found = pages_of(
            client("cloudformation"), "describe_stack_events", "StackEvents", StackName=stack
        )
    except AccountError as error:
        return [str(error)]
    ordered = sorted(found, key=lambda event: event["Timestamp"])
    return [
        f"{(event['Timestamp'] - ordered[0]['Timestamp']).total_seconds():6.0f} s  "
        f"{event['LogicalResourceId']} {event['ResourceType']} {event['ResourceStatus']} "
        f"{event.get('ResourceStatusReason', '')}".rstrip()
        for event in ordered
    ]


if __name__ == "__main__":
    sys.exit(main())
