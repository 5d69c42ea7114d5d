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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.guard.parts import read_parts
from runtime.aws.guard.stacks import GuardedStack, find_deployments
from runtime.aws.guard.teardown import GONE, Teardown
from runtime.aws.ledger import PARTS, Entry, Ledger
from runtime.aws.stacks import DELETED
from runtime.times import INTERVAL_S

TICK_S = 40.0
"""A tick checks waiting teardowns again for this long."""
PAUSE_S = 5.0
ACT_S = 75.0
"""No step of a teardown begins later in a tick. The longest one, two calls that hang, then still ends in time."""
LOOKED_AT_ALL = "every deployment was looked at"
"""Log line after a tick has decided about all deployments and ordered teardowns. An alarm counts these lines."""
_log = logging.getLogger("nitro.guard")


@dataclass
class _Case:
    """A tick's work on one deployment.

    Attributes:
        deployed: The deployment.
        entry: The ledger's entry of its run; None if it has none.
        reason: Why it is ended; empty if it may continue.
        report: The deployment's part of the tick's result.
    """

    deployed: GuardedStack
    entry: Entry | None
    reason: str
    report: dict[str, Any]


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
        self._client = client
        self._ledger = ledger
        self._now = now
        self._clock = clock
        self._sleep = sleep
        self._tick_s = tick_s
        self._pause_s = pause_s
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
            not be handled, ``error``. Before them ``stack`` and ``error`` of each stack that could not be read.

        Raises:
            LedgerError: The ledger cannot be used.
        """
        began_s, now_s = self._clock(), self._now()
        looked_at_s = self._ledger.last_tick_s() or 0.0
        entries = {entry.run: entry for entry in self._ledger.entries()}
        known = {stack: run for run, entry in entries.items() for stack in _unsettled(entry)}
        found, unread = find_deployments(self._client, known, asking=asking)
        cases = [self._decide(one, entries.get(one.run), looked_at_s, now_s) for one in found]
        for case in cases:
            if not is_rehearsed:
                self._write(case, now_s)
            elif case.deployed.stack == asking:
                self._notice(case)
        if not is_rehearsed:
            if unread.keys() <= known.keys() and not any("error" in one.report for one in cases):
                # The time is from before the list: a stack that neither it nor the ledger has did not cost anything.
                self._ledger.tick(now_s)
                _log.info(LOOKED_AT_ALL)
            self._act([case for case in cases if "error" not in case.report], began_s, now_s)
        at = datetime.datetime.fromtimestamp(self._now(), datetime.UTC)
        failed = [
            {"stack": name.rpartition("stack/")[2].partition("/")[0], "error": error}
            for name, error in unread.items()
        ]
        return {
            "at": at.isoformat(timespec="seconds"),
            "experiments": failed + [case.report for case in cases],
        }

    def _decide(
        self, stack: GuardedStack, entry: Entry | None, looked_at_s: float, now_s: float
    ) -> _Case:
        """Decides from known data alone. It makes no requests, so nothing can delay it."""
        deployed = stack.begun(entry, looked_at_s)
        order = entry.order_for(deployed.stack) if entry else None
        reason = order.reason if order else deployed.reason_to_end(entry, now_s)
        report = {
            "stack": deployed.name,
            "run": deployed.run,
            "created_at_s": deployed.created_at_s,
            "decision": reason,
            "waiting_for": "",
            "projected_usd": round(deployed.projected_usd(entry, now_s), 6),
        }
        return _Case(deployed, entry, reason, report)

    def _notice(self, case: _Case) -> None:
        """Opens the account of a stack that the run's entry does not have."""
        deployed, entry = case.deployed, case.entry
        if (entry is None or entry.stack != deployed.stack) and deployed.status != DELETED:
            case.entry = self._ledger.notice(
                deployed.run, stack=deployed.stack, began_at_s=deployed.created_at_s
            )

    def _write(self, case: _Case, now_s: float) -> None:
        """Writes what was seen and decided. From then on, a live learner knows that it must end."""
        deployed = case.deployed
        try:
            self._notice(case)
            entry = case.entry
            if case.reason and not (entry and entry.order_for(deployed.stack)):
                case.entry = entry = self.teardown.order(deployed, case.reason)
            if (
                entry is not None
                and entry.stack == deployed.stack
                and entry.heartbeat_at_s != entry.seen_heartbeat_s
            ):
                self._ledger.saw(
                    deployed.run,
                    stack=deployed.stack,
                    seen_heartbeat_s=entry.heartbeat_at_s,
                    seen_at_s=now_s,
                )
        except Exception as error:
            # One deployment's trouble must not keep the guard from the others.
            _fail(case, error)

    def _act(self, cases: Sequence[_Case], began_s: float, now_s: float) -> None:
        """Works on teardowns in turns, each tick beginning with another, then looks at stacks that are being made."""
        ended = [case for case in cases if case.reason]
        first = int(now_s // INTERVAL_S) % max(1, len(ended))
        works = [self._end(case) for case in ended[first:] + ended[:first]]
        works += [
            self._look_at_parts(case, now_s)
            for case in cases
            if not case.reason and case.deployed.status == "CREATE_IN_PROGRESS"
        ]
        self._take_turns(works, began_s + ACT_S, began_s + self._tick_s)

    def _take_turns(
        self, works: Sequence[Iterator[bool]], begin_until_s: float, wait_until_s: float
    ) -> None:
        """Runs one step at a time, always of the work that has used the least time; the first if tied.

        So slow steps delay the others once, and after that only use the time they leave.

        Args:
            works: Each does one step with ``next()`` and yields whether it waits. It ends when nothing is left.
            begin_until_s: No step begins after this time by the clock. The next tick does the rest.
            wait_until_s: Waiting work is not checked after this time.
        """
        used_s = dict.fromkeys(works, 0.0)
        ready, waiting = list(works), list[Iterator[bool]]()
        while (now_s := self._clock()) < begin_until_s:
            if not ready:
                if not waiting or now_s + self._pause_s > wait_until_s:
                    return
                self._sleep(self._pause_s)
                ready, waiting = waiting, []
                continue
            work = min(ready, key=used_s.__getitem__)
            is_waiting = next(work, None)
            used_s[work] += self._clock() - now_s
            if is_waiting is not False:
                ready.remove(work)
            if is_waiting:
                waiting.append(work)

    def _end(self, case: _Case) -> Iterator[bool]:
        """Ends one deployment, step by step."""
        deployed, entry = case.deployed, case.entry
        try:
            while entry is not None:
                case.report["waiting_for"] = yield from self.teardown.steps(deployed, entry)
                if not case.report["waiting_for"]:
                    return
                yield True
                entry = self._ledger.get(deployed.run)
        except Exception as error:
            # On any error: one deployment's trouble must not keep the guard from the others.
            _fail(case, error)

    def _look_at_parts(self, case: _Case, now_s: float) -> Iterator[bool]:
        """Records which parts of a stack had not been begun at ``now_s``, a time before the request.

        Each part costs money only from when it is made. The guard records this itself instead of believing the learner.
        The time is exact to a tick, and a missed tick only makes it earlier.
        """
        yield False
        stack = case.deployed.stack
        try:
            begun = read_parts(self._client("cloudformation"), stack).begun
            missing = {f"{part}_from_s": now_s for part in PARTS if part not in begun}
            if missing:
                self._ledger.saw(case.deployed.run, stack=stack, **missing)
        except AWS_ERRORS as error:
            # The part then counts from the last successful look.
            _log.warning("what %s has: %s", case.deployed.name, error)
        except Exception as error:
            _fail(case, error)


def _fail(case: _Case, error: Exception) -> None:
    case.report["error"] = f"{type(error).__name__}: {error}"


def _unsettled(entry: Entry) -> set[str]:
    """Returns the stacks for which an entry has something left to do."""
    stacks = {entry.stack} if entry.is_open else set()
    if entry.order and GONE not in entry.order.steps:
        stacks.add(entry.order.stack)
    return stacks
