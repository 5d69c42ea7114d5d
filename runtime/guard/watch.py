"""The guard: looks at every deployment of the account once a minute, and takes down what may not go on.

A Lambda function of a stack of its own, outside what it guards: it works whatever becomes of the learner. It finds
deployments by their stacks' tags, so that it also knows those that nobody announced, and counts on nothing that a
learner promises to do: what the ledger does not cover is counted at the price of all that exists.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of
from runtime.aws.stacks import find_stack
from runtime.guard.decision import reason_of_stack, reason_to_end
from runtime.guard.ledger import Entry, Ledger, LedgerError
from runtime.guard.stacks import GuardedStack, find_deployments, read_deployment
from runtime.guard.teardown import GONE, Teardown

TICK_S = 40.0
"""What waits in a teardown is looked at again, for so long."""
PAUSE_S = 5.0
_NAME_CHARACTERS = 100


class _ForeignStackError(Exception):
    """An entry of the ledger names what is not a stack of its run."""


class Guard:
    """What looks at all deployments once a minute. Two at once, or one twice, do no harm."""

    def __init__(
        self, client: Client, ledger: Ledger, tell: Callable[[str, str], None], *,
        now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, tick_s: float = TICK_S, pause_s: float = PAUSE_S,
    ) -> None:
        """Prepares the guard; looks at nothing yet.

        Args:
            client: Of any service.
            ledger: Tells what each run has spent, and keeps the orders.
            tell: Is told what people should know: a subject and a text.
            now: Seconds since 1970.
            clock: Monotonic seconds.
            sleep: Waits for that many seconds.
            tick_s: Seconds for which a tick looks again at what waits in a teardown.
            pause_s: Seconds between two looks.
        """
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now
        self._clock, self._sleep, self._tick_s, self._pause_s = clock, sleep, tick_s, pause_s
        self.teardown = Teardown(client, ledger, tell, now)

    def tick(self, *, is_rehearsed: bool = False) -> dict[str, Any]:
        """Looks at every deployment, and takes down what may not go on.

        Args:
            is_rehearsed: Only tell what would be done.

        Returns:
            ``at``, and for each experiment ``stack``, ``run``, ``projected_usd``, ``decision`` (why it is taken down;
            empty if it is not), ``waiting_for`` and, if it could not be dealt with, ``error``. Before them the
            same for each entry of the ledger that names a stack which is not its run's, or cannot be looked up.

        Raises:
            LedgerError: The ledger cannot be used.
            ClientError: CloudFormation refuses.
            BotoCoreError: CloudFormation cannot be asked.
        """
        now_s, looked_at_s = self._now(), self._ledger.last_tick_s() or 0.0
        entries = self._ledger.entries()
        known = {entry.run: entry for entry in entries}
        found = [one.begun(known.get(one.run), looked_at_s) for one in find_deployments(self._client("cloudformation"))]
        if not is_rehearsed:
            # Before it asked which stacks there are: what it did not see did not exist then.
            self._ledger.tick(now_s)
        deleted, troubles = self._deleted(entries, {one.stack: one.run for one in found}, is_rehearsed)
        # First what a stack of before has cost, then what has come in its place.
        found = deleted + found
        until_s = self._clock() + self._tick_s
        reports = {one.stack: self._report(one, is_rehearsed) for one in found}
        while not is_rehearsed and self._clock() < until_s and any(
                report["waiting_for"] for report in reports.values()):
            self._sleep(self._pause_s)
            reports |= {one.stack: self._report(one, False) for one in found if reports[one.stack]["waiting_for"]}
        at = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        return {"at": at.isoformat(timespec="seconds"), "experiments": [*troubles, *reports.values()]}

    def _deleted(
        self, entries: list[Entry], known: Mapping[str, str], is_rehearsed: bool
    ) -> tuple[list[GuardedStack], list[dict[str, Any]]]:
        """Deployments whose stack is gone, but whose teardown or last dollars nobody has seen to.

        Args:
            entries: Of the ledger.
            known: The runs of the stacks that are there, by the stack's id.
            is_rehearsed: Whether nothing may be written.

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
                deleted.append(self._find_deleted(entry.run, stack).begun(entry, 0.0))
            except Exception as error:
                # A learner can write anything into its entry: that must not keep the guard from the others.
                troubles.append({"stack": stack[:_NAME_CHARACTERS], "run": entry.run, "decision": "",
                                 "waiting_for": "", "projected_usd": 0.0,
                                 "error": self._disowned(entry, stack, error, is_rehearsed)})
        return deleted, troubles

    def _find_deleted(self, run: str, stack: str) -> GuardedStack:
        """The deployment that a stack was.

        Raises:
            _ForeignStackError: It is no stack, or not one of that run.
        """
        problem = f"the ledger's entry of {run} names {stack[:_NAME_CHARACTERS]!r}, which is not a stack of it"
        try:
            described = find_stack(self._client("cloudformation"), stack)
        except ClientError as error:
            if code_of(error) == "ValidationError":
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
                    self._ledger.close(entry.run, stack=stack, spent_usd=entry.promised_usd,
                                       now_s=self._now())
                if entry.order_for(stack):
                    self._ledger.step_done(entry.run, GONE, stack=stack, now_s=self._now())
            except LedgerError as error:
                return f"{problem}; {error}"
        return f"{type(problem).__name__}: {problem}"

    def _report(self, deployed: GuardedStack, is_rehearsed: bool) -> dict[str, Any]:
        report = {"stack": deployed.name, "run": deployed.run, "decision": "", "waiting_for": "", "projected_usd": 0.0}
        try:
            entry = self._ledger.get(deployed.run)
            report["projected_usd"] = round(deployed.projected_usd(entry, self._now()), 6)
            return report | self._see_to(deployed, entry, is_rehearsed)
        except Exception as error:
            # Whatever it is: one deployment's trouble must not keep the guard from the others.
            return report | {"error": f"{type(error).__name__}: {error}"}

    def _see_to(self, deployed: GuardedStack, entry: Entry | None, is_rehearsed: bool) -> dict[str, Any]:
        now_s = self._now()
        is_new = entry is None or entry.stack != deployed.stack
        if is_new and deployed.status != "DELETE_COMPLETE" and not is_rehearsed:
            entry = self._ledger.notice(deployed.run, stack=deployed.stack, created_at_s=deployed.created_at_s)
        if entry is not None and entry.began_s(deployed.stack) is None and not is_rehearsed:
            self._ledger.begin(deployed.run, stack=deployed.stack, began_at_s=deployed.created_at_s)
        order = entry.order_for(deployed.stack) if entry else None
        reason = order.reason if order else reason_of_stack(deployed) or reason_to_end(deployed, entry, now_s)
        if is_rehearsed:
            return {"decision": reason}
        if entry is not None and entry.stack == deployed.stack and entry.heartbeat_at_s != entry.seen_heartbeat_s:
            self._ledger.saw(deployed.run, heartbeat_at_s=entry.heartbeat_at_s, now_s=now_s,
                             spent_usd=max(entry.spent_usd, entry.seen_spent_usd))
        if not reason:
            return {}
        ordered = entry if entry is not None and order else self.teardown.order(deployed, reason)
        return {"decision": reason, "waiting_for": self.teardown.advance(deployed, ordered)}


def _unsettled(entry: Entry) -> list[str]:
    """Stacks that an entry has something to be done about."""
    stacks = {entry.stack} if entry.is_open else set()
    if entry.order and GONE not in entry.order.steps:
        stacks.add(entry.order.stack)
    return sorted(stacks)


def _forgotten(run: str, stack: str) -> GuardedStack:
    """A deployment that CloudFormation does not remember any more."""
    name = stack.split("/")[1] if "/" in stack else stack
    return GuardedStack(experiment=run.partition("/")[0], run=run, stack=stack, name=name, status="DELETE_COMPLETE",
                    created_at_s=0.0)
