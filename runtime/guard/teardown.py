"""How a deployment is ended: one way for everybody and every reason, and gone only when Describe says so.

The guard, `python -m runtime stop` and `make destroy` all do what `Teardown` does. It may be interrupted anywhere and
repeated at any time: each step first looks whether it is done already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS, ClientError, code_of, message_of
from runtime.aws.stacks import find_stack, outputs_of
from runtime.guard.bill import final_usd
from runtime.guard.decision import silent_s
from runtime.guard.deletion import TeardownError, what_is_left
from runtime.guard.ledger import STARTING, TRAINING, Entry, Ledger, LedgerError, LostRunError, Order
from runtime.guard.parts import (
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
from runtime.guard.stacks import GuardedStack
from runtime.guard.times import ALIVE_S, INTERFACES_S, STOP_GRACE_S
from runtime.names import EXPERIMENT_TAG, INTERFACES_ROLE_OUTPUT, NETWORK_STACK

_PASSED_OVER_AFTER_S = 300.0
"""A step that is refused holds the stack's deletion up no longer."""
_CREATION, _NETWORK, _INTERFACES = "creation", "network", "interfaces"
_BILL, _STACK, GONE = "bill", "stack", "gone"
_ANSWER_CHARACTERS = 300


class Teardown:
    """Takes deployments down, in an order that ends first what costs most and could start more.

    1. *stop key*: running actors give up, and a learner that is there puts its results into the bucket;
    2. *learner*: the only one that starts actors; its group is set to 0 for good, or the execution that has its rounds
       run is stopped;
    3. *provisioned capacity* and 4. *concurrency*: no actor is kept warm, and none can start any more;
    5. *network*: the function leaves it, which Lambda does while the rest goes on;
    6. *cache*; 7. *bill*: what all of it has cost in the end, into the ledger;
    8. *interfaces*: those of the function are gone, so that CloudFormation does not wait for them;
    9. *stack*: all that is left, which costs next to nothing; tried again for as long as that fails;
    10. *gone*: nothing of it is found by Describe.
    """

    def __init__(
        self, client: Client, ledger: Ledger, tell: Callable[[str, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Prepares teardowns; takes nothing down yet.

        Args:
            client: Of any service.
            ledger: Keeps the orders and how far they are.
            tell: Is told what people should know: a subject and a text.
            now: Seconds since 1970.
        """
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now

    def order(self, deployed: GuardedStack, reason: str) -> Entry:
        """Orders the teardown; from then on the guard does it, whatever becomes of the caller.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_s = self._now()
        entry = self._ledger.order(deployed.run, stack=deployed.stack, reason=reason, now_s=now_s)
        if _order(entry).ordered_at_s == now_s:
            self._tell(f"{deployed.name} is being taken down", f"{reason}. {_dollars(deployed, entry, now_s)}")
        return entry

    def advance(self, deployed: GuardedStack, entry: Entry) -> str:
        """Does of an ordered teardown what can be done now; raises and returns as `steps` does in the end."""
        steps = self.steps(deployed, entry)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return str(end.value)

    def steps(self, deployed: GuardedStack, entry: Entry) -> Generator[bool, None, str]:
        """Does of an ordered teardown what can be done now, and pauses before each step.

        Yields:
            False: it does not wait.

        Returns:
            What it waits for, for people; empty if all is gone.

        Raises:
            LostRunError: The order is for a later deployment.
            TeardownError: A step failed, or could not be noted; to be tried again. A step that has failed for long is
                passed over: CloudFormation, which has more rights, may do what it should have done.
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
                # What costs money ends even if nobody can note it.
                failures.append(f"{name}: {error}")
        if failures:
            raise TeardownError(f"{deployed.name}: {'; '.join(failures)}")
        return waits_for

    def _read_parts(self, deployed: GuardedStack, failures: list[str]) -> Parts | None:
        """None, and one failure more, if it cannot be told."""
        try:
            # By now its names may be another deployment's, which is not meant.
            if self._is_redeployed(deployed):
                return Parts()
            return read_parts(self._client("cloudformation"), deployed.stack)
        except AWS_ERRORS as error:
            failures.append(f"what it has: {error}")
            return None

    def _note(self, deployed: GuardedStack, entry: Entry, step: str) -> Entry:
        """Notes when a step was done first; tells people of the last one."""
        if step in _order(entry).steps:
            return entry
        if step == GONE:
            self._tell_end(deployed, entry)
        return self._ledger.step_done(deployed.run, step, stack=deployed.stack, now_s=self._now())

    def _steps(
        self, deployed: GuardedStack, entry: Callable[[], Entry], parts: Parts
    ) -> Iterator[tuple[str, Callable[[], str]]]:
        """The steps by name, in order; ``entry`` gives the entry as it is when a step is taken."""
        is_half_made = _CREATION in _order(entry()).steps
        if deployed.status == "CREATE_IN_PROGRESS":
            # Before anything more of it is made.
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
        # If a step before was refused, it is known only now when nothing was billed any more; if the stack was being
        # made, what was: CloudFormation may have begun a part that it did not list yet.
        yield _BILL, lambda: self._bill(deployed)
        yield GONE, lambda: self._find_rest(deployed, parts)

    def _end_creation(self, deployed: GuardedStack) -> str:
        self._client("cloudformation").delete_stack(StackName=deployed.stack)
        return ""

    def _stop_actors(self, deployed: GuardedStack, entry: Entry, parts: Parts) -> str:
        order = _order(entry)
        if "stop key" in order.steps or entry.stack != deployed.stack:
            return ""
        # One whose stack was not complete has nothing to put away.
        is_there = entry.state in (STARTING, TRAINING) and silent_s(entry, self._now()) < ALIVE_S and (
            deployed.status not in ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"))
        if is_there and self._now() - order.ordered_at_s < STOP_GRACE_S:
            return "the learner, which puts its results into the bucket, or the pool"
        # One that ends well has told its actors, and taken the event away.
        if entry.stop_event and parts.alias:
            self._invoke_stop(deployed, parts, entry.stop_event)
        return ""

    def _invoke_stop(self, deployed: GuardedStack, parts: Parts, event: str) -> None:
        """Lets an actor, which can reach the cache, set the stop key."""
        try:
            answer = self._client("lambda", is_quick=True).invoke(
                FunctionName=parts.function, Qualifier=parts.alias, Payload=event.encode())
            problem = answer["Payload"].read().decode(errors="replace") if "FunctionError" in answer else ""
        except AWS_ERRORS as error:
            problem = str(error)
        if problem:
            self._tell(f"{deployed.name}: its actors were not told to stop",
                       f"They end at their time limit. {problem[:_ANSWER_CHARACTERS]}")

    def _bill(self, deployed: GuardedStack) -> str:
        """Notes, once, what the run has cost with all that this deployment could still cost; modelled."""
        entry = self._ledger.get(deployed.run)
        if entry is None or entry.closed_stack == deployed.stack:
            return ""
        if entry.stack != deployed.stack:
            if entry.began_stack != deployed.stack:
                return ""
            # Its learner has written another one there, as if this one cost nothing.
            entry = self._ledger.reclaim(deployed.run, stack=deployed.stack)
        steps = {} if _CREATION in _order(entry).steps else _order(entry).steps
        learner_gone_s, cache_gone_s = (steps.get(name, self._now()) for name in ("concurrency", "cache"))
        usd = final_usd(self._client, deployed, entry, learner_gone_s=learner_gone_s, cache_gone_s=cache_gone_s)
        self._ledger.close(deployed.run, stack=deployed.stack, spent_usd=usd, now_s=cache_gone_s)
        return ""

    def _interfaces_role(self) -> str:
        stack = find_stack(self._client("cloudformation"), NETWORK_STACK)
        return outputs_of(stack or {}).get(INTERFACES_ROLE_OUTPUT, "")

    def _await_interfaces(self, deployed: GuardedStack, entry: Entry, parts: Parts) -> str:
        """Waits, but not for long: what is left then costs nothing, and Lambda deletes it with a role that stays."""
        order = _order(entry)
        left = "" if _INTERFACES in order.steps else find_interfaces(self._client, parts)
        if left and self._now() - order.steps.get(_NETWORK, order.ordered_at_s) < INTERFACES_S:
            return left
        if left:
            self._tell(f"{deployed.name}: network interfaces are left",
                       f"Waiting for {left}. They cost nothing; the experiment can be deployed again at once, but not "
                       f"{NETWORK_STACK} be deleted")
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
            self._tell(f"{deployed.name} could not be deleted ({failures} times)",
                       f"What costs money is gone; the rest is tried again every minute. {problem}")

    def _find_rest(self, deployed: GuardedStack, parts: Parts) -> str:
        """What Describe still finds of it though the stack is gone."""
        if self._is_redeployed(deployed):
            return ""
        machines, functions = self._client("ec2"), self._client("lambda")
        rest = find_instances(machines, EXPERIMENT_TAG, deployed.experiment)
        rest += [name for name in parts.functions if is_there(functions, name)]
        return f"{', '.join(rest)}, which should be gone" if rest else ""

    def _is_redeployed(self, deployed: GuardedStack) -> bool:
        """Whether another stack of the same name is there by now, whose parts bear the same names."""
        stack = find_stack(self._client("cloudformation"), deployed.name)
        return stack is not None and stack["StackId"] != deployed.stack

    def _tell_end(self, deployed: GuardedStack, entry: Entry) -> None:
        order = _order(entry)
        steps = ", ".join(f"{name} after {at - order.ordered_at_s:.0f} s" for name, at in sorted(
            order.steps.items(), key=lambda step: step[1]))
        self._tell(f"{deployed.name} is gone",
                   f"{order.reason}. {_dollars(deployed, entry, self._now())} Steps: {steps}. The results of a run "
                   f"are in the results bucket under {deployed.run}/, those of a pool in its own directory")


def _order(entry: Entry) -> Order:
    if entry.order is None:
        raise TeardownError(f"the teardown of {entry.run} was never ordered")
    return entry.order


def _dollars(deployed: GuardedStack, entry: Entry, now_s: float) -> str:
    is_closed = _BILL in _order(entry).steps
    usd = entry.spent_usd if is_closed else deployed.projected_usd(entry, now_s)
    return (f"{'It has' if is_closed else 'So far it can have'} cost at most ${usd:.4f} of ${deployed.budget_usd:.4f} "
            "(modelled from list prices).")
