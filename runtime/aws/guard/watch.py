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
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, ClientError, code_of
from runtime.aws.guard.decision import reason_of_stack, reason_to_end
from runtime.aws.guard.ledger import (
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
)
from runtime.aws.guard.parts import end_learner, missing_of, read_parts
from runtime.aws.guard.stacks import (
    GuardedStack,
    find_deployments,
    is_ours,
    read_deployment,
)
from runtime.aws.guard.teardown import GONE, Teardown
from runtime.aws.guard.turns import Work, take_turns
from runtime.aws.stacks import find_stack
from runtime.errors import RunError
from runtime.times import STOP_GRACE_S

TICK_S = 40.0
"""A tick checks waiting teardowns again for this long."""
PAUSE_S = 5.0
ACT_S = 75.0
"""No step of a teardown begins later in a tick. The longest one, two calls that hang, then still ends in time."""
LOOKED_AT_ALL = "every deployment was looked at"
"""Log line after a tick has decided about all deployments and ordered teardowns. An alarm counts these lines."""
_LISTED_S = 86_400.0
"""A list of tags surely has a stack this long after its creation."""
_NAME_CHARACTERS = 100
_log = logging.getLogger("nitro.guard")


class ReplacementError(RunError):
    """A stack's run cannot be replaced; the text says what to do."""


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
        self.report = {
            "stack": name,
            "run": self.run,
            "decision": "",
            "waiting_for": "",
            "projected_usd": 0.0,
        }

    def fail(self, error: Exception | str) -> None:
        self.report["error"] = (
            error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        )


class Guard:
    """Looks at all deployments once a minute. Concurrent or repeated ticks are harmless."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        tell: Callable[[str, str], None],
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        tick_s: float = TICK_S,
        pause_s: float = PAUSE_S,
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

    def tick(self, *, is_rehearsed: bool = False, asking: str = "") -> dict[str, Any]:
        """Looks at every deployment, orders the teardowns that are due, and then works on them.

        Args:
            is_rehearsed: Only report what would be done.
            asking: Id of the stack whose check asks whether the guard sees it. The ledger keeps it, so that later ticks
                see it, too, however late its tags are listed.

        Returns:
            ``at``, and for each experiment ``stack``, ``run``, ``created_at_s`` (when it began to cost money),
            ``projected_usd``, ``decision`` (why it is taken down; empty if it is not), ``waiting_for`` and, if it could
            not be handled, ``error``. Before them the same for
            each ledger entry that names a stack which is not its run's or cannot be looked up, and for each stack that
            could not be read or on which the guard has no rights.

        Raises:
            LedgerError: The ledger cannot be used.
        """
        began_s, now_s = self._clock(), self._now()
        looked_at_s = self._ledger.last_tick_s() or 0.0
        entries = self._ledger.entries()
        by_run = {entry.run: entry for entry in entries}
        known = {
            entry.began_stack
            for entry in entries
            if is_ours(entry.began_stack)
            and (entry.is_open or now_s - entry.began_at_s < _LISTED_S)
        }
        seen = find_deployments(self._client, known | {asking} if asking else known)
        owned = [_with_owner(one, entries) for one in seen.deployments]
        found = [one.begun(by_run.get(one.run), looked_at_s) for one in owned]
        cases = [self._decided(one, by_run.get(one.run), now_s) for one in found]
        for case in cases:
            if case.stack == asking:
                self._note(case)
        if not is_rehearsed:
            for case in cases:
                self._write(case, now_s)
            if seen.unseen.keys() <= known and not any("error" in case.report for case in cases):
                # The time is from before the list: a stack that neither it nor the ledger has did not cost anything.
                self._ledger.tick(now_s)
                _log.info(LOOKED_AT_ALL)
        there = {one.stack: one for one in found}
        # Bill an earlier stack before the one that replaced it.
        gone = [
            _Case(stack, entry.run, entry)
            for entry in entries
            for stack in _unsettled(entry)
            if stack not in seen.unseen and (stack not in there or there[stack].run != entry.run)
        ]
        cases = gone + cases
        if is_rehearsed:
            for case in gone:
                self._look_up(case, there, is_rehearsed=True)
        else:
            self._act([case for case in cases if "error" not in case.report], there, began_s, now_s)
        at = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        unread = [
            _Case(name.rpartition("stack/")[2].partition("/")[0], "", None).report
            | {"error": error}
            for name, error in (seen.unseen | seen.foreign).items()
        ]
        return {
            "at": at.isoformat(timespec="seconds"),
            "experiments": unread
            + [case.report for case in sorted(cases, key=lambda case: case.deployed is not None)],
        }

    def _decided(self, deployed: GuardedStack, entry: Entry | None, now_s: float) -> _Case:
        """Decides from known data alone. It makes no requests, so nothing can delay it."""
        case = _Case(deployed.stack, deployed.run, entry, deployed)
        order = entry.order_for(deployed.stack) if entry else None
        case.report["created_at_s"] = deployed.created_at_s
        try:
            case.report["projected_usd"] = round(deployed.projected_usd(entry, now_s), 6)
            case.reason = (
                order.reason
                if order
                else reason_of_stack(deployed) or reason_to_end(deployed, entry, now_s)
            )
        except Exception as error:
            # End it on any error: a guard that cannot tell must not look away.
            case.reason = f"its possible cost is unknown: {type(error).__name__}: {error}"
        case.report["decision"] = case.reason
        return case

    def _note(self, case: _Case) -> Entry | None:
        """Writes that a stack was seen, and since when it costs money; returns the entry."""
        deployed, entry = case.deployed, case.entry
        assert deployed is not None, "it was seen"
        if (
            entry is None or entry.stack != deployed.stack
        ) and deployed.status != "DELETE_COMPLETE":
            entry = self._ledger.notice(
                deployed.run, stack=deployed.stack, created_at_s=deployed.created_at_s
            )
        if entry is not None and entry.began_s(deployed.stack) is None:
            self._ledger.begin(deployed.run, stack=deployed.stack, began_at_s=deployed.created_at_s)
        return entry

    def _write(self, case: _Case, now_s: float) -> None:
        """Writes what was seen and decided. From then on, a live learner knows that it must end."""
        deployed, entry = case.deployed, case.entry
        if deployed is None:
            return
        try:
            entry = self._note(case)
            if case.reason and not (entry and entry.order_for(deployed.stack)):
                entry = self.teardown.order(deployed, case.reason)
            if (
                entry is not None
                and entry.stack == deployed.stack
                and entry.heartbeat_at_s != entry.seen_heartbeat_s
            ):
                self._ledger.saw(
                    deployed.run,
                    heartbeat_at_s=entry.heartbeat_at_s,
                    now_s=now_s,
                    spent_usd=max(entry.spent_usd, entry.seen_spent_usd),
                )
        except Exception as error:
            # One deployment's trouble must not keep the guard from the others.
            case.fail(error)
        case.entry = entry

    def _act(
        self,
        cases: Sequence[_Case],
        there: Mapping[str, GuardedStack],
        began_s: float,
        now_s: float,
    ) -> None:
        """Works on teardowns in turns, longest-neglected first, then looks at stacks that are being made."""
        waiting = sorted(
            (case for case in cases if case.deployed is None or case.reason),
            key=lambda case: case.entry.served_at_s if case.entry else 0.0,
        )
        made = [
            case
            for case in cases
            if case.deployed is not None
            and not case.reason
            and case.deployed.status == "CREATE_IN_PROGRESS"
        ]
        works = [
            *(self._work(case, there) for case in waiting),
            *(self._look_at_parts(case, now_s) for case in made),
        ]
        take_turns(
            works,
            clock=self._clock,
            sleep=self._sleep,
            begin_until_s=began_s + ACT_S,
            wait_until_s=began_s + self._tick_s,
            pause_s=self._pause_s,
        )

    def _work(self, case: _Case, there: Mapping[str, GuardedStack]) -> Work:
        """Ends one deployment, step by step."""
        try:
            newer = there.get(case.stack)
            if case.deployed is None and newer is not None and _was_replaced(case.entry, newer):
                yield False
                case.report["waiting_for"] = self._end_replaced(case.run, newer)
                return
            if case.deployed is None and not self._look_up(case, there, is_rehearsed=False):
                return
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

    def replace_run(self, stack: str, run: str, by: str, *, until_s: float) -> None:
        """Ends a stack's run for one that an update of the stack brings, before the update changes anything.

        The old learner sees the order, keeps its results, and ends; then nothing of it starts again. Its group, or its
        state machine, stays: the update starts the new learner with it.

        Args:
            stack: The stack's id.
            run: Key of the run that the stack has.
            by: Key of the run that it is to have; the same if only something else changes.
            until_s: When to stop waiting for the learner, in seconds since 1970.

        Raises:
            ReplacementError: One of the two is being ended, or was ended, in this stack.
        """
        reason = f"superseded by {by}"
        for one in {run, by}:
            entry = self._ledger.get(one)
            order = entry.order_for(stack) if entry is not None else None
            if order is not None and (one, order.reason) != (run, reason):
                raise ReplacementError(
                    f"run {one} was ended in this stack: {order.reason}. When the stack is gone, "
                    "deploy again, which continues the run; `python -m runtime status` shows it"
                )
            if (
                run == by
                and entry is not None
                and entry.stack == stack
                and entry.state in (STARTING, TRAINING)
            ):
                raise ReplacementError(
                    f"run {run} is {entry.state} in this stack, and an update would not reach it. "
                    f"End it first: python -m runtime stop {run.partition('/')[0]}; then deploy "
                    "again, which continues it"
                )
        if run == by:
            return
        self._ledger.order(run, stack=stack, reason=reason, now_s=self._now())
        while self._is_ending(self._ledger.get(run)) and self._now() < until_s:
            self._sleep(self._pause_s)
        parts = read_parts(self._client("cloudformation"), stack)
        while end_learner(self._client, parts) and self._now() < until_s:
            self._sleep(self._pause_s)

    def _is_ending(self, entry: Entry | None) -> bool:
        """Whether a learner whose end is ordered may still keep results."""
        return (
            entry is not None
            and entry.order is not None
            and entry.state in (STARTING, TRAINING)
            and self._now() - entry.order.ordered_at_s < STOP_GRACE_S
        )

    def _end_replaced(self, run: str, newer: GuardedStack) -> str:
        """Closes the account of a run whose stack has another run by now. Returns what it waits for."""
        is_taken_back = "ROLLBACK" in newer.status
        reason = "its update was rolled back" if is_taken_back else f"superseded by {newer.run}"
        entry = self._ledger.order(run, stack=newer.stack, reason=reason, now_s=self._now())
        if self._is_ending(entry):
            return "the learner, which puts its results into the bucket, or the pool"
        order, usd = entry.order_for(newer.stack), entry.promised_usd
        if entry.is_open and entry.stack == newer.stack:
            # At the prices of the run itself: the stack's tags have those of the newer one.
            own = replace(
                newer,
                burn_usd_per_hour=entry.burn_usd_per_hour or newer.burn_usd_per_hour,
                floor_usd_per_hour=0.0,
                cache_usd_per_hour=0.0,
                provisioned_usd_per_hour=0.0,
            )
            usd = own.begun(entry, 0.0).projected_usd(entry, self._now())
            self._ledger.close(run, stack=newer.stack, spent_usd=usd, now_s=self._now())
        self._ledger.step_done(run, GONE, stack=newer.stack, now_s=self._now())
        self._tell(
            f"{newer.name}: run {run} has ended",
            f"{order.reason if order else reason}. It has cost at most ${usd:.4f} (modelled from list prices). "
            f"Its results are in the results bucket under {run}/",
        )
        return ""

    def _look_up(
        self, case: _Case, there: Mapping[str, GuardedStack], *, is_rehearsed: bool
    ) -> bool:
        """Finds a deployment whose stack is gone but whose teardown or final cost is still open.

        Args:
            case: A case from a ledger entry.
            there: The existing stacks, by id.
            is_rehearsed: Whether nothing may be written.

        Returns:
            Whether the deployment still needs work. If the stack was not the run's, the entry is settled and the case
            reports that.
        """
        entry = case.entry
        assert entry is not None, "the entry is what names the stack"
        try:
            if (newer := there.get(case.stack)) is not None:
                if _was_replaced(entry, newer):
                    return False
                raise _ForeignStackError(
                    f"the ledger's entry of {case.run} names a stack of {newer.run}"
                )
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
                    self._ledger.close(
                        entry.run, stack=stack, spent_usd=entry.promised_usd, now_s=self._now()
                    )
                if entry.order_for(stack):
                    self._ledger.step_done(entry.run, GONE, stack=stack, now_s=self._now())
            except LedgerError as error:
                return f"{problem}; {error}"
        return f"{type(problem).__name__}: {problem}"


def _was_replaced(entry: Entry | None, deployed: GuardedStack) -> bool:
    """Whether the guard itself saw, or ordered the end of, this entry's run in a stack that has another run by now."""
    return (
        entry is not None
        and entry.run.partition("/")[0] == deployed.run.partition("/")[0]
        and (entry.began_stack == deployed.stack or entry.order_for(deployed.stack) is not None)
    )


def _with_owner(deployed: GuardedStack, entries: Sequence[Entry]) -> GuardedStack:
    """Returns a stack that is being updated with the run that it still has.

    CloudFormation shows the new run and its limits from the beginning. The stack has them when the guard's check has
    ordered the old run's end, and never if the check refuses.
    """
    if not deployed.status.endswith("_IN_PROGRESS"):
        return deployed
    others = [entry for entry in entries if entry.run != deployed.run]
    is_replaced = any(entry.order_for(deployed.stack) is not None for entry in others)
    old = [
        entry.run
        for entry in others
        if entry.is_open
        and entry.stack == entry.began_stack == deployed.stack
        and entry.order_for(deployed.stack) is None
        and _was_replaced(entry, deployed)
    ]
    return replace(
        deployed,
        run=old[0] if old else deployed.run,
        has_other_limits=deployed.status.startswith("UPDATE") and not is_replaced,
    )


def _unsettled(entry: Entry) -> list[str]:
    """Returns the stacks for which an entry has something left to do."""
    stacks = {entry.stack} if entry.is_open else set()
    if entry.order and GONE not in entry.order.steps:
        stacks.add(entry.order.stack)
    return sorted(stacks)


def _forgotten(run: str, stack: str) -> GuardedStack:
    """Returns a deployment that CloudFormation no longer remembers."""
    name = stack.split("/")[1] if "/" in stack else stack
    return GuardedStack(
        experiment=run.partition("/")[0],
        run=run,
        stack=stack,
        name=name,
        status="DELETE_COMPLETE",
        created_at_s=0.0,
    )
