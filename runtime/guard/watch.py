"""The guard: looks at all of the account's deployments once a minute and takes down each one that must end.

It is a Lambda function in a stack of its own, because nothing inside a stack that is being deleted can retry. It finds
deployments by their stacks' tags, so none has to register. It does not trust a learner's promises: time that the ledger
does not cover counts at the price of all parts that exist.

It decides about every deployment before it acts on any, and teardowns take turns. So neither a run's data nor a slow
answer keeps it from another deployment.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, ClientError, code_of
from runtime.aws.stacks import find_stack
from runtime.guard.decision import reason_of_stack, reason_to_end
from runtime.guard.ledger import Entry, Ledger, LedgerError
from runtime.guard.parts import missing_of
from runtime.guard.stacks import GuardedStack, find_deployments, read_deployment
from runtime.guard.teardown import GONE, Teardown
from runtime.guard.turns import Work, take_turns

TICK_S = 40.0
"""A tick checks waiting teardowns again for this long."""
PAUSE_S = 5.0
ACT_S = 75.0
"""No step of a teardown begins later in a tick. The longest one, two calls that hang, then still ends in time."""
LOOKED_AT_ALL = "every deployment was looked at"
"""Log line after a tick has decided about all deployments and ordered teardowns. An alarm counts these lines."""
_NAME_CHARACTERS = 100
_log = logging.getLogger("nitro.guard")


class _ForeignStackError(Exception):
    """A ledger entry names something other than a stack of its run."""


@dataclass
class _Case:
    """A tick's work on one deployment.

    Attributes:
        stack: Id of its stack.
        run: Key of its run's entry.
        entry: The ledger's entry; None if it has none.
        report: The deployment's part of the tick's result.
        deployed: The deployment; None if its stack is gone and not looked up yet.
        reason: Why it is ended; empty if it may continue.
    """

    stack: str
    run: str
    entry: Entry | None
    report: dict[str, Any] = field(init=False)
    deployed: GuardedStack | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        name = self.deployed.name if self.deployed else self.stack[:_NAME_CHARACTERS]
        self.report = {"stack": name, "run": self.run, "decision": "", "waiting_for": "", "projected_usd": 0.0}

    def fail(self, error: Exception | str) -> None:
        self.report["error"] = error if isinstance(error, str) else f"{type(error).__name__}: {error}"


class Guard:
    """Looks at all deployments once a minute. Concurrent or repeated ticks are harmless."""

    def __init__(
        self, client: Client, ledger: Ledger, tell: Callable[[str, str], None], *,
        now: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep, tick_s: float = TICK_S, pause_s: float = PAUSE_S,
    ) -> None:
        """Prepares the guard without looking.

        Args:
            client: Makes boto3 clients by service name.
            ledger: Has each run's spending and stores the orders.
            tell: Sends people a message: a subject and a text.
            now: Returns seconds since 1970.
            clock: Returns monotonic seconds.
            sleep: Waits for a number of seconds.
            tick_s: Seconds for which a tick checks waiting teardowns again.
            pause_s: Seconds between two checks.
        """
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now
        self._clock, self._sleep, self._tick_s, self._pause_s = clock, sleep, tick_s, pause_s
        self.teardown = Teardown(client, ledger, tell, now)

    def tick(self, *, is_rehearsed: bool = False) -> dict[str, Any]:
        """Looks at every deployment, orders the teardowns that are due, and then works on them.

        Args:
            is_rehearsed: Only report what would be done.

        Returns:
            ``at``, and for each experiment ``stack``, ``run``, ``projected_usd``, ``decision`` (why it is taken down;
            empty if it is not), ``waiting_for`` and, if it could not be handled, ``error``. Before them the same for
            each ledger entry that names a stack which is not its run's or cannot be looked up.

        Raises:
            LedgerError: The ledger cannot be used.
            ClientError: CloudFormation refuses.
            BotoCoreError: CloudFormation cannot be reached.
        """
        began_s, now_s = self._clock(), self._now()
        looked_at_s = self._ledger.last_tick_s() or 0.0
        entries = self._ledger.entries()
        by_run = {entry.run: entry for entry in entries}
        found = [one.begun(by_run.get(one.run), looked_at_s)
                 for one in find_deployments(self._client("cloudformation"))]
        cases = [self._decided(one, by_run.get(one.run), now_s) for one in found]
        if not is_rehearsed:
            for case in cases:
                self._write(case, now_s)
            if not any("error" in case.report for case in cases):
                # The time is from before the list of stacks: a stack that is not in it did not exist then.
                self._ledger.tick(now_s)
                _log.info(LOOKED_AT_ALL)
        runs = {one.stack: one.run for one in found}
        # Bill an earlier stack before the one that replaced it.
        gone = [_Case(stack, entry.run, entry) for entry in entries for stack in _unsettled(entry)
                if runs.get(stack) != entry.run]
        cases = gone + cases
        if is_rehearsed:
            for case in gone:
                self._look_up(case, runs, is_rehearsed=True)
        else:
            self._act([case for case in cases if "error" not in case.report], runs, began_s, now_s)
        at = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        return {"at": at.isoformat(timespec="seconds"), "experiments": [
            case.report for case in sorted(cases, key=lambda case: case.deployed is not None)]}

    def _decided(self, deployed: GuardedStack, entry: Entry | None, now_s: float) -> _Case:
        """Decides from known data alone. It makes no requests, so nothing can delay it."""
        case = _Case(deployed.stack, deployed.run, entry, deployed)
        order = entry.order_for(deployed.stack) if entry else None
        try:
            case.report["projected_usd"] = round(deployed.projected_usd(entry, now_s), 6)
            case.reason = order.reason if order else reason_of_stack(deployed) or reason_to_end(deployed, entry, now_s)
        except Exception as error:
            # End it on any error: a guard that cannot tell must not look away.
            case.reason = f"its possible cost is unknown: {type(error).__name__}: {error}"
        case.report["decision"] = case.reason
        return case

    def _write(self, case: _Case, now_s: float) -> None:
        """Writes what was seen and decided. From then on, a live learner knows that it must end."""
        deployed, entry = case.deployed, case.entry
        if deployed is None:
            return
        try:
            if (entry is None or entry.stack != deployed.stack) and deployed.status != "DELETE_COMPLETE":
                entry = self._ledger.notice(deployed.run, stack=deployed.stack, created_at_s=deployed.created_at_s)
            if entry is not None and entry.began_s(deployed.stack) is None:
                self._ledger.begin(deployed.run, stack=deployed.stack, began_at_s=deployed.created_at_s)
            if case.reason and not (entry and entry.order_for(deployed.stack)):
                entry = self.teardown.order(deployed, case.reason)
            if entry is not None and entry.stack == deployed.stack and entry.heartbeat_at_s != entry.seen_heartbeat_s:
                self._ledger.saw(deployed.run, heartbeat_at_s=entry.heartbeat_at_s, now_s=now_s,
                                 spent_usd=max(entry.spent_usd, entry.seen_spent_usd))
        except Exception as error:
            # One deployment's trouble must not keep the guard from the others.
            case.fail(error)
        case.entry = entry

    def _act(self, cases: Sequence[_Case], runs: Mapping[str, str], began_s: float, now_s: float) -> None:
        """Works on teardowns in turns, longest-neglected first, then looks at stacks that are being made."""
        waiting = sorted((case for case in cases if case.deployed is None or case.reason),
                         key=lambda case: case.entry.served_at_s if case.entry else 0.0)
        made = [case for case in cases if case.deployed is not None and not case.reason
                and case.deployed.status == "CREATE_IN_PROGRESS"]
        works = [*(self._work(case, runs) for case in waiting), *(self._look_at_parts(case, now_s) for case in made)]
        take_turns(works, clock=self._clock, sleep=self._sleep,
                   begin_until_s=began_s + ACT_S, wait_until_s=began_s + self._tick_s, pause_s=self._pause_s)

    def _work(self, case: _Case, runs: Mapping[str, str]) -> Work:
        """Ends one deployment, step by step."""
        if case.deployed is None and not self._look_up(case, runs, is_rehearsed=False):
            return
        try:
            yield from self._end(case)
        except Exception as error:
            # On any error: one deployment's trouble must not keep the guard from the others.
            case.fail(error)

    def _look_at_parts(self, case: _Case, now_s: float) -> Work:
        """Records which parts of a stack had not been begun at ``now_s``, a time before the request.

        Each part costs money only from when it is made. The guard records this itself instead of believing the learner.
        The time is exact to a tick, and a missed tick only makes it earlier.
        """
        yield False
        try:
            missing = missing_of(self._client("cloudformation"), case.stack)
            if missing:
                self._ledger.missed(case.run, missing, stack=case.stack, now_s=now_s)
        except AWS_ERRORS as error:
            # The part then counts from the last successful look.
            _log.warning("what %s has: %s", case.report["stack"], error)
        except Exception as error:
            case.fail(error)

    def _end(self, case: _Case) -> Work:
        deployed = case.deployed
        assert deployed is not None, "it was looked up"
        entry = self._ledger.serve(case.run, now_s=self._now())
        while True:
            if entry.order_for(deployed.stack) is None:
                entry = self.teardown.order(deployed, case.reason)
            case.report["waiting_for"] = yield from self.teardown.steps(deployed, entry)
            if not case.report["waiting_for"]:
                return
            yield True
            entry = self._ledger.get(case.run) or entry

    def _look_up(self, case: _Case, runs: Mapping[str, str], *, is_rehearsed: bool) -> bool:
        """Finds a deployment whose stack is gone but whose teardown or final cost is still open.

        Args:
            case: A case from a ledger entry.
            runs: Runs of the existing stacks, by stack id.
            is_rehearsed: Whether nothing may be written.

        Returns:
            Whether the deployment still needs work. If the stack was not the run's, the entry is settled and the case
            reports that.
        """
        entry = case.entry
        assert entry is not None, "the entry is what names the stack"
        try:
            if case.stack in runs:
                raise _ForeignStackError(f"the ledger's entry of {case.run} names a stack of {runs[case.stack]}")
            deployed = self._find_deleted(case.run, case.stack).begun(entry, 0.0)
        except Exception as error:
            # A learner can write anything into its entry; that must not keep the guard from the others.
            case.fail(self._disowned(entry, case.stack, error, is_rehearsed))
            return False
        decided = self._decided(deployed, entry, self._now())
        case.deployed, case.reason, case.report = deployed, decided.reason, decided.report
        return bool(case.reason)

    def _find_deleted(self, run: str, stack: str) -> GuardedStack:
        """Returns the deployment of a deleted stack.

        Raises:
            _ForeignStackError: It is not a stack, or not one of that run.
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
        """Settles a ledger entry that names a stack of another run; returns the report.

        Dollars that the entry gives as spent and reserved stay spent. The run's own stack is then counted from its
        creation.
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


def _unsettled(entry: Entry) -> list[str]:
    """Returns the stacks for which an entry has something left to do."""
    stacks = {entry.stack} if entry.is_open else set()
    if entry.order and GONE not in entry.order.steps:
        stacks.add(entry.order.stack)
    return sorted(stacks)


def _forgotten(run: str, stack: str) -> GuardedStack:
    """Returns a deployment that CloudFormation no longer remembers."""
    name = stack.split("/")[1] if "/" in stack else stack
    return GuardedStack(experiment=run.partition("/")[0], run=run, stack=stack, name=name, status="DELETE_COMPLETE",
                    created_at_s=0.0)
