"""The guard: looks at every deployment of the account once a minute, and takes down what may not go on.

A Lambda function of a stack of its own, outside what it guards: it works whatever becomes of the learner. It finds
deployments by their stacks' tags, so that it also knows those that nobody announced, and counts on nothing that a
learner promises to do: what the ledger does not cover is counted at the price of all that exists.
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from runtime.guard.deployments import Deployed, find_deployments, read_deployment
from runtime.guard.ledger import AWS_ERRORS, FINISHED, STARTING, Entry, Ledger, LedgerError
from runtime.guard.teardown import GONE, Client, Teardown, clients, find_stack, silent_s

INTERVAL_S = 60.0
MISSING_S = 2700.0
"""A deployment whose learner was not heard of by then has failed; CloudFormation gave up on it before."""
STARTING_S = 1500.0
"""So long a learner may boot, or be replaced, without another sign."""
LATE_S = 600.0
"""So long a learner that trains may be silent: a replacement of a spot instance says that it boots before."""
_TICK_S = 40.0
"""What waits in a teardown is looked at again, for so long."""
_PAUSE_S = 5.0
_SUBJECT_CHARACTERS = 100
_FAILED = ("CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
"""Statuses in which a stack stays for ever, and keeps its name."""


def reason_to_end(deployed: Deployed, entry: Entry | None, now_s: float) -> str:
    """Why a deployment must be taken down now, for people; empty where it may go on.

    That it has spent its budget is judged by the most that it can have cost, without the tail that is kept for taking
    it down: an order that is given within an interval after that still ends within the budget.

    Args:
        entry: The ledger's; null where it knows nothing.
        now_s: By the guard's clock, as all times but the learner's own.
    """
    is_known = entry is not None and entry.stack == deployed.stack
    if deployed.unreadable:
        return f"nobody can tell what it may cost: {deployed.unreadable}"
    if is_known and entry.damage:
        return f"nobody can tell what it has cost: the ledger's {entry.damage}"
    if is_known and entry.state == FINISHED:
        return f"it has finished: {entry.reason}"
    if now_s - deployed.created_at_s > deployed.lifetime_s:
        return f"its lifetime of {deployed.lifetime_s / 3600:g} hours is over"
    projected_usd = deployed.projected_usd(entry, now_s)
    if projected_usd > deployed.budget_usd - deployed.tail_usd:
        return (f"its budget is used up: it can have cost ${projected_usd:.4f}, and ${deployed.tail_usd:.4f} of "
                f"${deployed.budget_usd:g} are kept for taking it down")
    return _reason_in_silence(deployed, entry if is_known else None, now_s)


def _reason_in_silence(deployed: Deployed, entry: Entry | None, now_s: float) -> str:
    if entry is None or not entry.heartbeat_at_s:
        if now_s - deployed.created_at_s > MISSING_S:
            return f"its learner was never heard of, in {MISSING_S / 60:g} minutes"
        return ""
    limit_s = STARTING_S if entry.state == STARTING else LATE_S
    if silent_s(entry, now_s) > limit_s:
        return f"its learner ({entry.state}) has not been heard of for {limit_s / 60:g} minutes"
    return ""


class _ForeignStackError(Exception):
    """An entry of the ledger names what is not a stack of its run."""


class Guard:
    """What is done once a minute. Two at once, or one twice, do no harm."""

    def __init__(
        self, client: Client, ledger: Ledger, tell: Callable[[str, str], None], *,
        now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        client: Of any service.
        tell: Is told what people should know: a subject and a text.
        now: Seconds since 1970.
        clock: Monotonic seconds.
        """
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now
        self._clock, self._sleep = clock, sleep
        self._teardown = Teardown(client, ledger, tell, now)

    def tick(self, *, is_rehearsed: bool = False) -> dict[str, Any]:
        """Looks at every deployment, and takes down what may not go on.

        Args:
            is_rehearsed: Only tell what would be done.

        Returns:
            ``at``, and for each experiment ``stack``, ``run``, ``projected_usd``, ``decision`` (why it is taken down;
            empty where it is not), ``waiting_for`` and, where it could not be dealt with, ``error``. Before them the
            same for each entry of the ledger that names a stack which is not its run's, or cannot be looked up.

        Raises:
            LedgerError: The ledger cannot be used.
            ClientError or BotoCoreError: CloudFormation cannot be asked.
        """
        entries = self._ledger.entries()
        found = find_deployments(self._client("cloudformation"))
        if not is_rehearsed:
            self._ledger.tick(self._now())
        deleted, troubles = self._deleted(entries, {one.stack: one.run for one in found}, is_rehearsed)
        # First what a stack of before has cost, then what has come in its place.
        found = deleted + found
        until_s = self._clock() + _TICK_S
        reports = {one.stack: self._report(one, is_rehearsed) for one in found}
        while not is_rehearsed and self._clock() < until_s and any(
                report["waiting_for"] for report in reports.values()):
            self._sleep(_PAUSE_S)
            reports |= {one.stack: self._report(one, False) for one in found if reports[one.stack]["waiting_for"]}
        at = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        return {"at": at.isoformat(timespec="seconds"), "experiments": [*troubles, *reports.values()]}

    def _deleted(
        self, entries: list[Entry], known: Mapping[str, str], is_rehearsed: bool
    ) -> tuple[list[Deployed], list[dict[str, Any]]]:
        """Deployments whose stack is gone, but whose teardown or last dollars nobody has seen to.

        Args:
            known: The runs of the stacks that are there, by the stack's id.

        Returns:
            The deployments, and a report of each entry that names a stack which is none, or not its own.
        """
        deleted, troubles = [], []
        for entry, stack in [(one, stack) for one in entries for stack in _unsettled(one)]:
            if known.get(stack) == entry.run:
                continue
            try:
                if stack in known:
                    raise _ForeignStackError(f"the ledger's entry of {entry.run} names a stack of {known[stack]}")
                deleted.append(self._find_deleted(entry.run, stack))
            except Exception as error:
                # A learner can write anything into its entry: that must not keep the guard from the others.
                troubles.append({"stack": stack[:_SUBJECT_CHARACTERS], "run": entry.run, "decision": "",
                                 "waiting_for": "", "projected_usd": 0.0,
                                 "error": self._disowned(entry, stack, error, is_rehearsed)})
        return deleted, troubles

    def _find_deleted(self, run: str, stack: str) -> Deployed:
        """Raises: _ForeignStackError: It is no stack, or not one of that run."""
        problem = f"the ledger's entry of {run} names {stack[:_SUBJECT_CHARACTERS]!r}, which is not a stack of it"
        try:
            described = find_stack(self._client("cloudformation"), stack)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ValidationError":
                raise _ForeignStackError(problem) from error
            raise
        if described is None:
            return _forgotten(run, stack)
        deployed = read_deployment(described, is_deleted=True)
        if deployed is None and described["StackStatus"] == "DELETE_COMPLETE":
            return _forgotten(run, stack)
        if deployed is None or (deployed.run, deployed.stack) != (run, stack):
            raise _ForeignStackError(problem)
        return deployed

    def _disowned(self, entry: Entry, stack: str, problem: Exception, is_rehearsed: bool) -> str:
        """Settles in the ledger what an entry says of a stack that is not its own; returns what is reported.

        What the entry says was spent and reserved stays spent. The run's own stack is then counted from its creation.
        """
        if isinstance(problem, _ForeignStackError) and not is_rehearsed:
            try:
                if entry.is_open and entry.stack == stack:
                    self._ledger.close(entry.run, stack=stack, spent_usd=entry.spent_usd + entry.reserved_usd,
                                       now_s=self._now())
                if entry.order_for(stack):
                    self._ledger.step_done(entry.run, GONE, stack=stack, now_s=self._now())
            except LedgerError as error:
                return f"{problem}; {error}"
        return f"{type(problem).__name__}: {problem}"

    def _report(self, deployed: Deployed, is_rehearsed: bool) -> dict[str, Any]:
        report = {"stack": deployed.name, "run": deployed.run, "decision": "", "waiting_for": "", "projected_usd": 0.0}
        try:
            entry = self._ledger.get(deployed.run)
            report["projected_usd"] = round(deployed.projected_usd(entry, self._now()), 6)
            return report | self._see_to(deployed, entry, is_rehearsed)
        except Exception as error:
            # Whatever it is: one deployment's trouble must not keep the guard from the others.
            return report | {"error": f"{type(error).__name__}: {error}"}

    def _see_to(self, deployed: Deployed, entry: Entry | None, is_rehearsed: bool) -> dict[str, Any]:
        now_s = self._now()
        is_new = entry is None or entry.stack != deployed.stack
        if is_new and deployed.status != "DELETE_COMPLETE" and not is_rehearsed:
            entry = self._ledger.notice(deployed.run, stack=deployed.stack, created_at_s=deployed.created_at_s)
        order = entry.order_for(deployed.stack) if entry else None
        reason = order.reason if order else _reason(deployed, entry, now_s)
        if is_rehearsed:
            return {"decision": reason}
        if entry is not None and entry.stack == deployed.stack and entry.heartbeat_at_s != entry.seen_heartbeat_s:
            self._ledger.saw(deployed.run, heartbeat_at_s=entry.heartbeat_at_s, now_s=now_s)
        if not reason:
            return {}
        entry = entry if order else self._teardown.order(deployed, reason)
        return {"decision": reason, "waiting_for": self._teardown.advance(deployed, entry)}


def _unsettled(entry: Entry) -> list[str]:
    """Stacks that an entry has something to be done about."""
    stacks = {entry.stack} if entry.is_open else set()
    if entry.order and GONE not in entry.order.steps:
        stacks.add(entry.order.stack)
    return sorted(stacks)


def _reason(deployed: Deployed, entry: Entry | None, now_s: float) -> str:
    if deployed.status == "DELETE_COMPLETE":
        return "its stack was deleted by somebody else"
    if deployed.status in _FAILED:
        return f"its stack is {deployed.status}"
    return reason_to_end(deployed, entry, now_s)


def _forgotten(run: str, stack: str) -> Deployed:
    """A deployment that CloudFormation does not remember any more."""
    name = stack.split("/")[1] if "/" in stack else stack
    return Deployed(experiment=run.partition("/")[0], run=run, stack=stack, name=name, status="DELETE_COMPLETE",
                    created_at_s=0.0)


def handler(event: Mapping[str, Any], context: object, now: Callable[[], float] = time.time) -> dict[str, Any]:
    """One tick; with ``{"rehearse": true}`` it only tells what it would do.

    Args:
        event: EventBridge's, whose content does not matter.
        now: Seconds since 1970.

    Raises:
        RuntimeError: A deployment could not be dealt with, or nobody could be told; an alarm sees that.
    """
    client = _clients()
    topic = os.environ["NITRO_REPORTS_TOPIC"]
    untold: list[str] = []

    def tell(subject: str, text: str) -> None:
        print(f"{subject}: {text}", flush=True)
        try:
            client("sns").publish(TopicArn=topic, Subject=subject[:_SUBJECT_CHARACTERS], Message=text)
        except AWS_ERRORS as error:
            # Nobody hears of it, but it is done.
            untold.append(f"not reported: {error}")

    guard = Guard(client, Ledger(client("dynamodb"), os.environ["NITRO_LEDGER_TABLE"]), tell, now=now)
    answer = guard.tick(is_rehearsed=bool(event.get("rehearse")))
    print(json.dumps(answer), flush=True)
    failed = [f"{one['stack']}: {one['error']}" for one in answer["experiments"] if "error" in one]
    if failed or untold:
        raise RuntimeError("; ".join(failed + untold))
    return answer


_made: list[Client] = []


def _clients() -> Client:
    """The same ones for all ticks of one process."""
    if not _made:
        _made.append(clients())
    return _made[0]
