"""Ends deployments, in the same way for every caller and reason. One is gone only when Describe says so.

The guard, `python -m runtime stop` and `make destroy` all use `Teardown`. It may be interrupted anywhere and repeated
at any time, because each step first checks whether it is already done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, ClientError, code_of, message_of
from runtime.aws.guard import parts as ends
from runtime.aws.guard.parts import Parts, find_instances, is_there, read_parts
from runtime.aws.guard.stacks import GuardedStack, silent_s
from runtime.aws.ledger import (
    FINISHED,
    PARTS,
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
    Order,
)
from runtime.aws.stacks import DELETED, find_stack, resources_of
from runtime.errors import RunError
from runtime.names import EXPERIMENT_TAG
from runtime.times import ALIVE_S, LEG_S, STOP_GRACE_S

_PASSED_OVER_AFTER_S = 300.0
"""After this time, a refused step no longer delays the stack's deletion."""
_CREATION, _BILL, _STACK, GONE = "creation", "bill", "stack", "gone"
_BLOCK_S = 300
"""Provisioned concurrency is billed in blocks of this length, to the end of the current one."""


class TeardownError(RunError):
    """A deployment or a stack could not be taken down; the text says what is left and why."""


class Teardown:
    """Takes deployments down, beginning with parts that cost the most or could start others.

    1. *results*: a live learner tells its actors to give up, and uploads its results;
    2. *learner*: the only one that starts actors; its group is set to 0 for good, or the execution that runs its rounds
       is stopped;
    3. *provisioned capacity* and 4. *concurrency*: no actor is kept warm, and none can start any more;
    5. *cache*; 6. *bill*: the final cost, into the ledger;
    7. *stack*: all that is left, which costs almost nothing; retried until it succeeds. CloudFormation waits there for
       the network interfaces of a function with a cache, up to 40 minutes
       (aws-cloudformation/cloudformation-coverage-roadmap#392);
    8. *gone*: Describe finds nothing of it.
    """

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        tell: Callable[[str, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Prepares teardowns without starting any.

        Args:
            client: Makes boto3 clients by service name.
            ledger: Stores the orders and their progress.
            tell: Sends people a message: a subject and a text.
            now: Returns seconds since 1970.
        """
        self._client = client
        self._ledger = ledger
        self._tell = tell
        self._now = now

    def order(self, deployed: GuardedStack, reason: str) -> Entry:
        """Orders the teardown. The guard then completes it even if the caller ends.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_s = self._now()
        entry = self._ledger.order(deployed.run, stack=deployed.stack, reason=reason, now_s=now_s)
        self._tell(
            f"{deployed.name} is being taken down",
            f"{reason}. So far it can have cost at most ${deployed.projected_usd(entry, now_s):.4f} of "
            f"${deployed.budget_usd:.4f} (modelled from list prices)",
        )
        return entry

    def steps(self, deployed: GuardedStack, entry: Entry) -> Generator[bool, None, str]:
        """Advances an ordered teardown as far as possible now, and pauses before each step.

        Yields:
            False: it does not wait.

        Returns:
            What it waits for, for people; empty if all is gone.

        Raises:
            LostRunError: The order is for a later deployment.
            TeardownError: A step failed or could not be recorded; try again. A step that keeps failing is passed over:
                CloudFormation, which has more rights, may succeed.
        """
        failures: list[str] = []
        parts = self._read_parts(deployed, failures)
        is_young = self._now() - _order(entry).ordered_at_s < _PASSED_OVER_AFTER_S
        is_deleted = False
        waits_for = ""
        for name, step in self._steps(deployed, entry, parts):
            # What is wrong delays the deletion of the stack, for a while, and what needs it; but not what costs money.
            held_up = {_STACK: is_young, _BILL: not is_deleted, GONE: True}
            if failures and held_up.get(name, False):
                continue
            yield False
            try:
                waits_for = step()
                if waits_for:
                    waits_for = f"{name}: {waits_for}"
                    break
                is_deleted = is_deleted or name == _STACK
                self._note(deployed, entry, name)
            except LostRunError:
                raise
            except (LedgerError, *AWS_ERRORS) as error:
                failures.append(f"{name}: {error}")
        if failures:
            raise TeardownError(f"{deployed.name}: {'; '.join(failures)}")
        return waits_for

    def _read_parts(self, deployed: GuardedStack, failures: list[str]) -> Parts | None:
        """Returns the stack's parts; None, and a failure, if AWS does not tell.

        None of a stack that has a successor: it uses the same names by now and must not be touched.
        """
        try:
            if self._is_redeployed(deployed):
                return Parts()
            return read_parts(self._client("cloudformation"), deployed.stack)
        except AWS_ERRORS as error:
            failures.append(f"what it has: {error}")
            return None

    def _note(self, deployed: GuardedStack, entry: Entry, step: str) -> None:
        """Records when a step was first done; reports the last step to people."""
        if step in _order(entry).steps:
            return
        if step == GONE:
            known = self._ledger.get(deployed.run) or entry
            self._tell(
                f"{deployed.name} is gone",
                f"{_order(entry).reason}. It has cost at most ${known.spent_usd:.4f} of "
                f"${deployed.budget_usd:.4f} (modelled from list prices). Results of a run are in the results bucket "
                f"under {deployed.run}/, those of a pool in its own directory",
            )
        self._ledger.step_done(deployed.run, step, stack=deployed.stack, now_s=self._now())

    def _steps(
        self, deployed: GuardedStack, entry: Entry, parts: Parts | None
    ) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yields the steps by name, in order; only the last ones if the parts are not known."""
        client, order = self._client, _order(entry)
        is_half_made = _CREATION in order.steps or deployed.status == "CREATE_IN_PROGRESS"
        if parts is not None:
            if deployed.status == "CREATE_IN_PROGRESS":
                yield _CREATION, lambda: self._end_creation(deployed)
            yield "results", lambda: self._await_results(deployed, entry)
            yield "learner", lambda: ends.end_learner(client, parts)
            yield "provisioned capacity", lambda: ends.end_provisioned(client, parts)
            yield "concurrency", lambda: ends.end_concurrency(client, parts)
            yield "cache", lambda: ends.end_cache(client, parts)
            if not is_half_made:
                yield _BILL, lambda: self._bill(deployed)
        yield _STACK, lambda: self._delete_stack(deployed)
        # If an earlier step was refused, parts were billed until now. If the stack was being made, CloudFormation may
        # have begun a part that it had not listed.
        yield _BILL, lambda: self._bill(deployed)
        yield GONE, lambda: self._find_rest(deployed, parts or Parts())

    def _end_creation(self, deployed: GuardedStack) -> str:
        """Stops CloudFormation before it makes anything more."""
        self._client("cloudformation").delete_stack(StackName=deployed.stack)
        return ""

    def _await_results(self, deployed: GuardedStack, entry: Entry) -> str:
        # A learner whose stack was never complete has nothing to upload.
        is_alive = (
            entry.stack == deployed.stack
            and entry.state in (STARTING, TRAINING)
            and silent_s(entry, self._now()) < ALIVE_S
            and deployed.status not in ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS")
        )
        if is_alive and self._now() - _order(entry).ordered_at_s < STOP_GRACE_S:
            return "the learner, which puts them into the bucket, or the pool"
        return ""

    def _bill(self, deployed: GuardedStack) -> str:
        """Records, once, the run's cost with all that this deployment could still cost; modelled."""
        entry = self._ledger.get(deployed.run)
        if entry is None or entry.stack != deployed.stack or not entry.is_open:
            return ""
        steps: Mapping[str, float] = _order(entry).steps
        if _CREATION in steps:
            steps = {}
        gone_s = dict.fromkeys(PARTS, steps.get("concurrency", self._now()))
        gone_s["cache"] = steps.get("cache", self._now())
        usd = self._final_usd(deployed, entry, gone_s)
        self._ledger.close(deployed.run, stack=deployed.stack, spent_usd=usd, now_s=gone_s["cache"])
        return ""

    def _final_usd(
        self, deployed: GuardedStack, entry: Entry, gone_s: Mapping[str, float]
    ) -> float:
        """Returns the run's cost, earlier deployments included. What AWS does not tell counts as if it existed.

        Args:
            gone_s: When each of `PARTS` was gone, as the guard saw it, in seconds since 1970.
        """
        until_s = dict(gone_s)
        try:
            # Also of a deleted stack, and with what a creation began after it was stopped.
            parts = read_parts(self._client("cloudformation"), deployed.stack)
        except AWS_ERRORS:
            return deployed.cost_usd(entry, gone_s)
        for part in PARTS:
            # A part that was never begun was gone at 0.
            seen_s = min(gone_s[part], parts.gone_at_s.get(part, gone_s[part]))
            until_s[part] = seen_s if part in parts.begun else 0.0
        if parts.machine is not None and entry.state != FINISHED:
            # A leg whose execution was stopped ends at its own time limit.
            until_s["learner"] = gone_s["learner"] + LEG_S
        if parts.alias is not None:
            until_s["provisioned"] += _BLOCK_S
        return deployed.cost_usd(entry, until_s)

    def _delete_stack(self, deployed: GuardedStack) -> str:
        formation = self._client("cloudformation")
        stack = find_stack(formation, deployed.stack)
        status = _status(stack)
        if status == DELETED:
            return ""
        if stack is not None and status == "DELETE_FAILED":
            self._count_failure(deployed, what_is_left(formation, stack))
        if status not in ("DELETE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"):
            try:
                formation.delete_stack(StackName=deployed.stack)
            except ClientError as error:
                if code_of(error) != "ValidationError":
                    raise
                message = f"it is {status}: {message_of(error)}"
                self._count_failure(deployed, message)
                return message
        status = _status(find_stack(formation, deployed.stack))
        return "" if status == DELETED else f"CloudFormation ({status})"

    def _count_failure(self, deployed: GuardedStack, problem: str) -> None:
        failures = _order(self._ledger.get(deployed.run)).failures + 1
        self._ledger.count_failures(deployed.run, failures, stack=deployed.stack)
        if failures % 60 == 1:
            self._tell(
                f"{deployed.name} could not be deleted ({failures} times)",
                f"What costs money is gone; the rest is tried again every minute. {problem}",
            )

    def _find_rest(self, deployed: GuardedStack, parts: Parts) -> str:
        """Returns what Describe still finds after the stack is gone."""
        if self._is_redeployed(deployed):
            return ""
        machines, functions = self._client("ec2"), self._client("lambda")
        rest = [*find_instances(machines, EXPERIMENT_TAG, deployed.experiment)]
        rest += [name for name in parts.functions if is_there(functions, name)]
        return f"{', '.join(rest)}, which should be gone" if rest else ""

    def _is_redeployed(self, deployed: GuardedStack) -> bool:
        """Returns whether a newer stack of the same name exists, whose parts have the same names."""
        stack = find_stack(self._client("cloudformation"), deployed.name)
        return stack is not None and stack["StackId"] != deployed.stack


def what_is_left(client: Any, stack: Mapping[str, Any]) -> str:
    """Returns why a stack could not be deleted, by resource, for people."""
    failed = [
        f"  {one['LogicalResourceId']} ({one['ResourceType']}): {one.get('ResourceStatusReason', 'no reason')}"
        for one in resources_of(client, stack["StackId"])
        if one["ResourceStatus"] == "DELETE_FAILED"
    ]
    reason = stack.get("StackStatusReason", "these resources are left")
    return "\n".join([f"{stack['StackName']} is {stack['StackStatus']}: {reason}", *failed])


def _order(entry: Entry | None) -> Order:
    if entry is None or entry.order is None:
        raise TeardownError("the teardown was never ordered")
    return entry.order


def _status(stack: Mapping[str, Any] | None) -> str:
    return str(stack["StackStatus"]) if stack else DELETED
