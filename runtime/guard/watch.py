"""The guard: looks at every deployment of the account once a minute, and takes down what may not go on.

A Lambda function of a stack of its own, outside what it guards: it works whatever becomes of the learner. It finds
deployments by their stacks' tags, so that it also knows those that nobody announced, and counts on nothing that a
learner promises to do: what the ledger does not cover is counted at the price of all that exists.

It decides about all of them before it acts on any, and the teardowns take turns. So nothing that one run has written,
and no answer that is long in coming, keeps it from another deployment.
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
"""What waits in a teardown is looked at again, for so long."""
PAUSE_S = 5.0
ACT_S = 75.0
"""No step of a teardown begins later in a tick; the longest one, two calls that hang, then still ends within it."""
LOOKED_AT_ALL = "every deployment was looked at"
"""What the log says when a tick has decided about all and ordered what must end; an alarm counts these lines."""
_NAME_CHARACTERS = 100
_log = logging.getLogger("nitro.guard")


class _ForeignStackError(Exception):
    """An entry of the ledger names what is not a stack of its run."""


@dataclass
class _Case:
    """What a tick has to do with one deployment.

    Attributes:
        stack: Id of its stack.
        run: Key of its run's entry.
        entry: The ledger's; None if it knows nothing.
        report: What is told of it.
        deployed: None until it is looked up: a stack that is gone.
        reason: Why it is ended; empty if it may go on.
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
        """Looks at every deployment, orders the end of what may not go on, and then ends what is to end.

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
                # Of before it asked which stacks there are: what it did not see did not exist then.
                self._ledger.tick(now_s)
                _log.info(LOOKED_AT_ALL)
        runs = {one.stack: one.run for one in found}
        # First what a stack of before has cost, then what has come in its place.
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
        """Decides, from what is known already: nobody is asked, so nobody can hold it up."""
        case = _Case(deployed.stack, deployed.run, entry, deployed)
        order = entry.order_for(deployed.stack) if entry else None
        try:
            case.report["projected_usd"] = round(deployed.projected_usd(entry, now_s), 6)
            case.reason = order.reason if order else reason_of_stack(deployed) or reason_to_end(deployed, entry, now_s)
        except Exception as error:
            # Whatever it is, that one is ended: a guard that cannot tell does not look away.
            case.reason = f"nobody can tell what it may cost: {type(error).__name__}: {error}"
        case.report["decision"] = case.reason
        return case

    def _write(self, case: _Case, now_s: float) -> None:
        """Writes what was seen and decided. From then on a learner that is there knows that it must end."""
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
        """Ends what is to end, in turns, what no tick has seen to for longest first; then looks at what is made."""
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
            # Whatever it is: one deployment's trouble must not keep the guard from the others.
            case.fail(error)

    def _look_at_parts(self, case: _Case, now_s: float) -> Work:
        """Notes what of a stack has not been begun at ``now_s``, which was before anybody was asked."""
        yield False
        try:
            missing = missing_of(self._client("cloudformation"), case.stack)
            if missing:
                self._ledger.missed(case.run, missing, stack=case.stack, now_s=now_s)
        except AWS_ERRORS as error:
            # Then it counts from the last time on that somebody looked.
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
        """Finds a deployment whose stack is gone, but whose teardown or last dollars nobody has seen to.

        Args:
            case: Of an entry of the ledger.
            runs: Those of the stacks that are there, by the stack's id.
            is_rehearsed: Whether nothing may be written.

        Returns:
            Whether the stack was the run's; else the entry is settled, and the case reports that.
        """
        entry = case.entry
        assert entry is not None, "the entry is what names the stack"
        try:
            if case.stack in runs:
                raise _ForeignStackError(f"the ledger's entry of {case.run} names a stack of {runs[case.stack]}")
            deployed = self._find_deleted(case.run, case.stack).begun(entry, 0.0)
        except Exception as error:
            # A learner can write anything into its entry: that must not keep the guard from the others.
            case.fail(self._disowned(entry, case.stack, error, is_rehearsed))
            return False
        decided = self._decided(deployed, entry, self._now())
        case.deployed, case.reason, case.report = deployed, decided.reason, decided.report
        return bool(case.reason)

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
