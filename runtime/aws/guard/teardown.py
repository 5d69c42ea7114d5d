"""Ends deployments, in the same way for every caller and reason. One is gone only when Describe says so.

The guard, `python -m runtime stop` and `make destroy` all use `Teardown`. It may be interrupted anywhere and repeated
at any time, because each step first checks whether it is already done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, ClientError, code_of, message_of
from runtime.aws.guard.bill import final_usd
from runtime.aws.guard.decision import silent_s
from runtime.aws.guard.deletion import TeardownError, what_is_left
from runtime.aws.guard.ledger import (
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
    Order,
)
from runtime.aws.guard.parts import (
    Parts,
    end_cache,
    end_concurrency,
    end_learner,
    end_provisioned,
    find_instances,
    find_interfaces,
    is_there,
    leave_network,
    read_parts,
)
from runtime.aws.guard.stacks import GuardedStack
from runtime.aws.stacks import find_stack, outputs_of
from runtime.names import EXPERIMENT_TAG, INTERFACES_ROLE_OUTPUT, NETWORK_STACK
from runtime.times import ALIVE_S, INTERFACES_S, STOP_GRACE_S

_PASSED_OVER_AFTER_S = 300.0
"""After this time, a refused step no longer delays the stack's deletion."""
_CREATION, _NETWORK, _INTERFACES = "creation", "network", "interfaces"
_BILL, _STACK, GONE = "bill", "stack", "gone"
_ANSWER_CHARACTERS = 300


class Teardown:
    """Takes deployments down, beginning with parts that cost the most or could start others.

    1. *stop key*: running actors give up, and a live learner uploads its results;
    2. *learner*: the only one that starts actors; its group is set to 0 for good, or the execution that runs its rounds
       is stopped;
    3. *provisioned capacity* and 4. *concurrency*: no actor is kept warm, and none can start any more;
    5. *network*: the function leaves it, which Lambda does during the next steps;
    6. *cache*; 7. *bill*: the final cost, into the ledger;
    8. *interfaces*: wait until the function's interfaces are gone, so that CloudFormation need not;
    9. *stack*: all that is left, which costs almost nothing; retried until it succeeds;
    10. *gone*: Describe finds nothing of it.
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
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now

    def order(self, deployed: GuardedStack, reason: str) -> Entry:
        """Orders the teardown. The guard then completes it even if the caller ends.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_s = self._now()
        entry = self._ledger.order(deployed.run, stack=deployed.stack, reason=reason, now_s=now_s)
        if _order(entry).ordered_at_s == now_s:
            self._tell(
                f"{deployed.name} is being taken down",
                f"{reason}. {_dollars(deployed, entry, now_s)}",
            )
        return entry

    def advance(self, deployed: GuardedStack, entry: Entry) -> str:
        """Advances an ordered teardown as far as possible now; raises and returns the same as `steps`."""
        steps = self.steps(deployed, entry)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return str(end.value)

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
        waits_for, is_deleted = "", False

        def newest() -> Entry:
            return entry

        for name, step in self._steps(deployed, newest, parts or Parts()):
            is_last = name in (_BILL, _STACK, GONE)
            if failures and (name == GONE or (name == _STACK and is_young)):
                break
            if (parts is None and not is_last) or (failures and name == _BILL and not is_deleted):
                continue
            yield False
            try:
                waits_for = step()
            except AWS_ERRORS as error:
                failures.append(f"{name}: {error}")
                continue
            if waits_for:
                waits_for = f"{name}: {waits_for}"
                break
            is_deleted = is_deleted or name == _STACK
            try:
                entry = self._note(deployed, entry, name)
            except LostRunError:
                raise
            except LedgerError as error:
                # End what costs money even if the ledger cannot record it.
                failures.append(f"{name}: {error}")
        if failures:
            raise TeardownError(f"{deployed.name}: {'; '.join(failures)}")
        return waits_for

    def _read_parts(self, deployed: GuardedStack, failures: list[str]) -> Parts | None:
        """Returns the parts; None, with one more failure, if they cannot be read."""
        try:
            # Another deployment may use the same names by now and must not be touched.
            if self._is_redeployed(deployed):
                return Parts()
            return read_parts(self._client("cloudformation"), deployed.stack)
        except AWS_ERRORS as error:
            failures.append(f"what it has: {error}")
            return None

    def _note(self, deployed: GuardedStack, entry: Entry, step: str) -> Entry:
        """Records when a step was first done; reports the last step to people."""
        if step in _order(entry).steps:
            return entry
        if step == GONE:
            self._tell_end(deployed, entry)
        return self._ledger.step_done(deployed.run, step, stack=deployed.stack, now_s=self._now())

    def _steps(
        self, deployed: GuardedStack, entry: Callable[[], Entry], parts: Parts
    ) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yields the steps by name, in order; ``entry`` returns the current entry when a step runs."""
        is_half_made = _CREATION in _order(entry()).steps
        if deployed.status == "CREATE_IN_PROGRESS":
            # Stop CloudFormation before it makes anything more.
            yield _CREATION, lambda: self._end_creation(deployed)
            is_half_made = True
        yield "stop key", lambda: self._stop_actors(deployed, entry(), parts)
        yield "learner", lambda: end_learner(self._client, parts)
        yield "provisioned capacity", lambda: end_provisioned(self._client, parts)
        yield "concurrency", lambda: end_concurrency(self._client, parts)
        yield _NETWORK, lambda: leave_network(self._client, parts, self._interfaces_role())
        yield "cache", lambda: end_cache(self._client, parts)
        if not is_half_made:
            yield _BILL, lambda: self._bill(deployed)
        yield _INTERFACES, lambda: self._await_interfaces(deployed, entry(), parts)
        yield _STACK, lambda: self._delete_stack(deployed)
        # If an earlier step was refused, parts were billed until now. If the stack was being made, CloudFormation may
        # have begun a part that it had not listed.
        yield _BILL, lambda: self._bill(deployed)
        yield GONE, lambda: self._find_rest(deployed, parts)

    def _end_creation(self, deployed: GuardedStack) -> str:
        self._client("cloudformation").delete_stack(StackName=deployed.stack)
        return ""

    def _stop_actors(self, deployed: GuardedStack, entry: Entry, parts: Parts) -> str:
        order = _order(entry)
        if "stop key" in order.steps or entry.stack != deployed.stack:
            return ""
        # A learner whose stack was never complete has nothing to upload.
        is_there = (
            entry.state in (STARTING, TRAINING)
            and silent_s(entry, self._now()) < ALIVE_S
            and (deployed.status not in ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"))
        )
        if is_there and self._now() - order.ordered_at_s < STOP_GRACE_S:
            return "the learner, which puts its results into the bucket, or the pool"
        # One that ends normally has stopped its actors and removed the event.
        if entry.stop_event and parts.function:
            self._invoke_stop(deployed, parts, entry.stop_event)
        return ""

    def _invoke_stop(self, deployed: GuardedStack, parts: Parts, event: str) -> None:
        """Lets an actor set the stop key: the guard is outside the VPC and cannot reach the cache."""
        try:
            answer = self._client("lambda", is_quick=True).invoke(
                FunctionName=parts.function,
                Qualifier=parts.alias or "$LATEST",
                Payload=event.encode(),
            )
            problem = (
                answer["Payload"].read().decode(errors="replace")
                if "FunctionError" in answer
                else ""
            )
        except AWS_ERRORS as error:
            problem = str(error)
        if problem:
            self._tell(
                f"{deployed.name}: its actors were not told to stop",
                f"They end at their time limit. {problem[:_ANSWER_CHARACTERS]}",
            )

    def _bill(self, deployed: GuardedStack) -> str:
        """Records, once, the run's cost with all that this deployment could still cost; modelled."""
        entry = self._ledger.get(deployed.run)
        if entry is None or entry.closed_stack == deployed.stack:
            return ""
        if entry.stack != deployed.stack:
            if entry.began_stack != deployed.stack:
                return ""
            # Its learner has put another stack's id there, as if this one cost nothing.
            entry = self._ledger.reclaim(deployed.run, stack=deployed.stack)
        steps = {} if _CREATION in _order(entry).steps else _order(entry).steps
        learner_gone_s, cache_gone_s = (
            steps.get(name, self._now()) for name in ("concurrency", "cache")
        )
        usd = final_usd(
            self._client, deployed, entry, learner_gone_s=learner_gone_s, cache_gone_s=cache_gone_s
        )
        self._ledger.close(deployed.run, stack=deployed.stack, spent_usd=usd, now_s=cache_gone_s)
        return ""

    def _interfaces_role(self) -> str:
        stack = find_stack(self._client("cloudformation"), NETWORK_STACK)
        return outputs_of(stack or {}).get(INTERFACES_ROLE_OUTPUT, "")

    def _await_interfaces(self, deployed: GuardedStack, entry: Entry, parts: Parts) -> str:
        """Waits briefly: after that, leftovers cost nothing, and Lambda deletes them with the network's role."""
        order = _order(entry)
        left = "" if _INTERFACES in order.steps else find_interfaces(self._client, parts)
        if left and self._now() - order.steps.get(_NETWORK, order.ordered_at_s) < INTERFACES_S:
            return left
        if left:
            self._tell(
                f"{deployed.name}: network interfaces are left",
                f"Waiting for {left}. They cost nothing; the experiment can be deployed again at once, but not "
                f"{NETWORK_STACK} be deleted",
            )
        return ""

    def _delete_stack(self, deployed: GuardedStack) -> str:
        formation = self._client("cloudformation")
        stack = find_stack(formation, deployed.stack)
        status = stack["StackStatus"] if stack else "DELETE_COMPLETE"
        if status == "DELETE_COMPLETE":
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
        stack = find_stack(formation, deployed.stack)
        status = stack["StackStatus"] if stack else "DELETE_COMPLETE"
        return "" if status == "DELETE_COMPLETE" else f"CloudFormation ({status})"

    def _count_failure(self, deployed: GuardedStack, problem: str) -> None:
        failures = self._ledger.count_failure(deployed.run, stack=deployed.stack)
        if failures in (1, 10) or failures % 60 == 0:
            self._tell(
                f"{deployed.name} could not be deleted ({failures} times)",
                f"What costs money is gone; the rest is tried again every minute. {problem}",
            )

    def _find_rest(self, deployed: GuardedStack, parts: Parts) -> str:
        """Returns what Describe still finds after the stack is gone."""
        if self._is_redeployed(deployed):
            return ""
        machines, functions = self._client("ec2"), self._client("lambda")
        rest = find_instances(machines, EXPERIMENT_TAG, deployed.experiment)
        rest += [name for name in parts.functions if is_there(functions, name)]
        return f"{', '.join(rest)}, which should be gone" if rest else ""

    def _is_redeployed(self, deployed: GuardedStack) -> bool:
        """Returns whether a newer stack of the same name exists, whose parts have the same names."""
        stack = find_stack(self._client("cloudformation"), deployed.name)
        return stack is not None and stack["StackId"] != deployed.stack

    def _tell_end(self, deployed: GuardedStack, entry: Entry) -> None:
        order = _order(entry)
        steps = ", ".join(
            f"{name} after {at - order.ordered_at_s:.0f} s"
            for name, at in sorted(order.steps.items(), key=lambda step: step[1])
        )
        self._tell(
            f"{deployed.name} is gone",
            f"{order.reason}. {_dollars(deployed, entry, self._now())} Steps: {steps}. The results of a run "
            f"are in the results bucket under {deployed.run}/, those of a pool in its own directory",
        )


def _order(entry: Entry) -> Order:
    if entry.order is None:
        raise TeardownError(f"the teardown of {entry.run} was never ordered")
    return entry.order


def _dollars(deployed: GuardedStack, entry: Entry, now_s: float) -> str:
    is_closed = _BILL in _order(entry).steps
    usd = entry.spent_usd if is_closed else deployed.projected_usd(entry, now_s)
    return (
        f"{'It has' if is_closed else 'So far it can have'} cost at most ${usd:.4f} of ${deployed.budget_usd:.4f} "
        "(modelled from list prices)."
    )
