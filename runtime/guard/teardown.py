"""How a deployment is ended: one way for everybody and every reason, and gone only when Describe says so.

The guard, `python -m runtime stop` and `make destroy` all do what `Teardown` does. It may be interrupted anywhere and
repeated at any time: each step first looks whether it is done already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import boto3
import botocore.exceptions
from botocore.config import Config

from runtime.errors import RunError
from runtime.guard.deployments import EXPERIMENT_TAG, Deployed
from runtime.guard.ledger import AWS_ERRORS, STARTING, TRAINING, Entry, Ledger, Order

POLL_S = 5.0
HEARTBEAT_S = 30.0
"""A learner says so often that it is there, and hears then that it shall end."""
ALIVE_S = 3 * HEARTBEAT_S
STOP_GRACE_S = 120.0
"""A learner that is there gets so long to put its results into the bucket."""
TERMINATION_S = 60.0
"""What ending an instance is taken to last, until it is not billed any more."""
CACHE_DELETION_S = 900.0
"""What deleting a cache is taken to last."""
_PASSED_OVER_AFTER_S = 300.0
"""A step that is refused holds the stack's deletion up no longer."""
_QUICKLY_S = 15.0
"""An actor gets so long to set the stop key; others may have to be taken down, too."""
_BILLED_STATES = ["pending", "running", "stopping", "stopped"]
_BLOCK_S = 300
"""Provisioned concurrency is billed by these."""
_BILL, _STACK, GONE = "bill", "stack", "gone"
_ANSWER_CHARACTERS = 300
_POLLS_UNTIL_BEGUN = 12
"""CloudFormation may show a stack as it was for a moment after it was told to delete it."""

class Client(Protocol):
    """Makes, or has, clients."""

    def __call__(self, service: str, *, is_quick: bool = False) -> Any:
        """A client of that service; with ``is_quick`` one that gives up soon."""


class TeardownError(RunError):
    """A stack could not be deleted, or not all of it; the text says what is left and why."""


def clients(session: boto3.Session | None = None) -> Client:
    """Clients that outlast hiccups of the network: a deletion may be watched for an hour."""
    session = session or boto3.Session()
    patient = Config(connect_timeout=5, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 5})
    quick = Config(connect_timeout=5, read_timeout=_QUICKLY_S, retries={"total_max_attempts": 1})

    @cache
    def client(service: str, *, is_quick: bool = False) -> Any:
        return session.client(service, config=quick if is_quick else patient)

    return client


def find_stack(client: Any, name: str) -> dict[str, Any] | None:
    """The stack of that name or id as CloudFormation describes it; null where there is none.

    Raises:
        ClientError: CloudFormation cannot be asked.
    """
    try:
        return client.describe_stacks(StackName=name)["Stacks"][0]
    except botocore.exceptions.ClientError as error:
        if "does not exist" in error.response["Error"]["Message"]:
            return None
        raise


def stack_names(client: Any, prefix: str) -> list[str]:
    """Names of the stacks that there are and that begin with ``prefix``, sorted."""
    pages = client.get_paginator("describe_stacks").paginate()
    return sorted(stack["StackName"] for page in pages for stack in page["Stacks"]
                  if stack["StackName"].startswith(prefix))


def delete_stack(
    client: Any, name: str, report: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Deletes a stack and returns when it is gone; a stack that is not there is.

    Args:
        client: Of CloudFormation.
        name: Name or id of the stack.
        report: Is told of each resource whose deletion has begun or ended.

    Raises:
        TeardownError: CloudFormation refused, or could not delete all of it.
        ClientError: CloudFormation cannot be asked; what has begun goes on without us.
    """
    stack = find_stack(client, name)
    if stack is None:
        return
    try:
        client.delete_stack(StackName=stack["StackId"])
    except client.exceptions.ClientError as error:
        said = error.response["Error"]
        if said["Code"] == "ValidationError":
            raise TeardownError(f"{stack['StackName']} was not deleted: {said['Message']}") from error
        raise
    _await_end(client, stack["StackId"], report, sleep)


def _await_end(client: Any, stack_id: str, report: Callable[[str], None], sleep: Callable[[float], None]) -> None:
    """By id: only under that can CloudFormation tell that a stack was deleted."""
    told: dict[str, str] = {}
    polls_before = 0
    while (stack := find_stack(client, stack_id)) is not None:
        status = stack["StackStatus"]
        _report_changes(client, stack_id, told, report)
        if status == "DELETE_COMPLETE":
            return
        if status == "DELETE_FAILED":
            raise TeardownError(what_is_left(client, stack))
        polls_before += status != "DELETE_IN_PROGRESS"
        if polls_before > _POLLS_UNTIL_BEGUN:
            raise TeardownError(f"{stack['StackName']} is not being deleted, it is {status}: "
                                f"{_last_reason(client, stack_id)}")
        sleep(POLL_S)


def _report_changes(client: Any, stack_id: str, told: dict[str, str], report: Callable[[str], None]) -> None:
    for one in _resources(client, stack_id):
        name, status = one["LogicalResourceId"], one["ResourceStatus"]
        if status.startswith("DELETE_") and told.get(name) != status:
            report(f"{status} {name} ({one['ResourceType']})")
            told[name] = status


def what_is_left(client: Any, stack: Mapping[str, Any]) -> str:
    """Why a stack could not be deleted, by resource, for people."""
    failed = [f"  {one['LogicalResourceId']} ({one['ResourceType']}): {one.get('ResourceStatusReason', 'no reason')}"
              for one in _resources(client, stack["StackId"]) if one["ResourceStatus"] == "DELETE_FAILED"]
    reason = stack.get("StackStatusReason", "these resources are left")
    return "\n".join([f"{stack['StackName']} is DELETE_FAILED: {reason}", *failed])


def _resources(client: Any, stack_id: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_stack_resources").paginate(StackName=stack_id)
    return [one for page in pages for one in page["StackResourceSummaries"]]


def _last_reason(client: Any, stack_id: str) -> str:
    events = client.describe_stack_events(StackName=stack_id)["StackEvents"]
    return next((event["ResourceStatusReason"] for event in events if event.get("ResourceStatusReason")),
                "CloudFormation gives no reason")


@dataclass(frozen=True)
class _Parts:
    """Physical names of what a stack has that costs money, or can be told to stop; null for what it has not.

    Attributes:
        group: The Auto Scaling group of the learner.
        function, alias: The actors'.
        serverless_cache, replication_group: The cache.
    """

    group: str | None = None
    function: str | None = None
    alias: str | None = None
    serverless_cache: str | None = None
    replication_group: str | None = None


class Teardown:
    """Takes deployments down, in an order that ends first what costs most and could start more.

    1. *stop key*: running actors give up, and a learner that is there puts its results into the bucket;
    2. *learner*: the only one that starts actors; its group is set to 0 for good;
    3. *provisioned capacity* and 4. *concurrency*: no actor is kept warm, and none can start any more;
    5. *cache*; 6. *bill*: what all of it has cost in the end, into the ledger;
    7. *stack*: all that is left, which costs next to nothing; tried again for as long as that fails;
    8. *gone*: nothing of it is found by Describe.
    """

    def __init__(
        self, client: Client, ledger: Ledger, tell: Callable[[str, str], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        client: Of any service.
        tell: Is told what people should know: a subject and a text.
        now: Seconds since 1970.
        """
        self._client, self._ledger, self._tell, self._now = client, ledger, tell, now

    def order(self, deployed: Deployed, reason: str) -> Entry:
        """Orders the teardown; from then on the guard does it, whatever becomes of the caller.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        now_s = self._now()
        entry = self._ledger.order(deployed.run, stack=deployed.stack, reason=reason, now_s=now_s)
        if _order(entry).ordered_at_s == now_s:
            self._tell(f"{deployed.name} is being taken down", f"{reason}. {_dollars(deployed, entry, now_s)}")
        return entry

    def advance(self, deployed: Deployed, entry: Entry) -> str:
        """Does of an ordered teardown what can be done now.

        Returns:
            What it waits for, for people; empty where all is gone.

        Raises:
            LedgerError: The ledger cannot be written.
            TeardownError: A step failed; to be tried again. A step that has failed for long is passed over:
                CloudFormation, which has more rights, may do what it should have done.
        """
        failures: list[str] = []
        parts = self._read_parts(deployed, failures)
        is_young = self._now() - _order(entry).ordered_at_s < _PASSED_OVER_AFTER_S
        waits_for, is_deleted = "", False
        for name, step in self._steps(deployed, entry, parts or _Parts()):
            is_last = name in (_BILL, _STACK, GONE)
            if failures and (name == GONE or (name == _STACK and is_young)):
                break
            if (parts is None and not is_last) or (failures and name == _BILL and not is_deleted):
                continue
            try:
                waits_for = step()
            except AWS_ERRORS as error:
                failures.append(f"{name}: {error}")
                continue
            if waits_for:
                waits_for = f"{name}: {waits_for}"
                break
            is_deleted = is_deleted or name == _STACK
            entry = self._note(deployed, entry, name)
        if failures:
            raise TeardownError(f"{deployed.name}: {'; '.join(failures)}")
        return waits_for

    def _read_parts(self, deployed: Deployed, failures: list[str]) -> _Parts | None:
        """Null, and one failure more, where it cannot be told."""
        try:
            # By now its names may be another deployment's, which is not meant.
            if self._is_redeployed(deployed):
                return _Parts()
            return _parts(self._client("cloudformation"), deployed.stack)
        except AWS_ERRORS as error:
            failures.append(f"what it has: {error}")
            return None

    def _note(self, deployed: Deployed, entry: Entry, step: str) -> Entry:
        """Notes when a step was done first; tells people of the last one."""
        if step in _order(entry).steps:
            return entry
        if step == GONE:
            self._tell_end(deployed, entry)
        return self._ledger.step_done(deployed.run, step, stack=deployed.stack, now_s=self._now())

    def _steps(self, deployed: Deployed, entry: Entry, parts: _Parts) -> Iterator[tuple[str, Callable[[], str]]]:
        if deployed.status == "CREATE_IN_PROGRESS":
            # Before anything more of it is made.
            yield "creation", lambda: self._end_creation(deployed)
        yield "stop key", lambda: self._stop_actors(deployed, entry, parts)
        yield "learner", lambda: self._end_learner(parts)
        yield "provisioned capacity", lambda: self._end_provisioned(parts)
        yield "concurrency", lambda: self._end_concurrency(parts)
        yield "cache", lambda: self._end_cache(parts)
        yield _BILL, lambda: self._bill(deployed)
        yield _STACK, lambda: self._delete_stack(deployed)
        # Where a step before was refused, it is known only now when nothing was billed any more.
        yield _BILL, lambda: self._bill(deployed)
        yield GONE, lambda: self._find_rest(deployed, parts)

    def _end_creation(self, deployed: Deployed) -> str:
        self._client("cloudformation").delete_stack(StackName=deployed.stack)
        return ""

    def _stop_actors(self, deployed: Deployed, entry: Entry, parts: _Parts) -> str:
        order = _order(entry)
        if "stop key" in order.steps or entry.stack != deployed.stack:
            return ""
        is_there = entry.state in (STARTING, TRAINING) and silent_s(entry, self._now()) < ALIVE_S
        if is_there and self._now() - order.ordered_at_s < STOP_GRACE_S:
            return "the learner, which puts its results into the bucket"
        # One that ends well has told its actors, and taken the event away.
        if entry.stop_event and parts.alias:
            self._invoke_stop(deployed, parts, entry.stop_event)
        return ""

    def _invoke_stop(self, deployed: Deployed, parts: _Parts, event: str) -> None:
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

    def _end_learner(self, parts: _Parts) -> str:
        if parts.group is None:
            return ""
        scaling = self._client("autoscaling")
        groups = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[parts.group])["AutoScalingGroups"]
        try:
            if any(group[size] for group in groups for size in ("MinSize", "MaxSize", "DesiredCapacity")):
                scaling.update_auto_scaling_group(
                    AutoScalingGroupName=parts.group, MinSize=0, MaxSize=0, DesiredCapacity=0)
        finally:
            waits_for = self._end_instances(parts.group)
        return waits_for

    def _end_instances(self, group: str) -> str:
        machines = self._client("ec2")
        instances = _instances(machines, "aws:autoscaling:groupName", group)
        if instances:
            machines.terminate_instances(InstanceIds=instances)
            instances = _instances(machines, "aws:autoscaling:groupName", group)
        return f"{', '.join(instances)} to end" if instances else ""

    def _end_provisioned(self, parts: _Parts) -> str:
        if parts.function is None or parts.alias is None:
            return ""
        functions = self._client("lambda")
        which = {"FunctionName": parts.function, "Qualifier": parts.alias}
        if _found(lambda: functions.get_provisioned_concurrency_config(**which)) is None:
            return ""
        functions.delete_provisioned_concurrency_config(**which)
        is_left = _found(lambda: functions.get_provisioned_concurrency_config(**which)) is not None
        return "the warm actors to end" if is_left else ""

    def _end_concurrency(self, parts: _Parts) -> str:
        if parts.function is None:
            return ""
        functions = self._client("lambda")

        def reserved() -> int | None:
            found = _found(lambda: functions.get_function_concurrency(FunctionName=parts.function))
            return 0 if found is None else found.get("ReservedConcurrentExecutions")

        if reserved() != 0:
            functions.put_function_concurrency(FunctionName=parts.function, ReservedConcurrentExecutions=0)
        return "" if reserved() == 0 else "the function to be barred"

    def _end_cache(self, parts: _Parts) -> str:
        caches = self._client("elasticache")
        waits_for = ""
        if parts.serverless_cache is not None:
            which = {"ServerlessCacheName": parts.serverless_cache}
            waits_for = _delete_cache(lambda: caches.describe_serverless_caches(**which)["ServerlessCaches"],
                                      lambda: caches.delete_serverless_cache(**which))
        if not waits_for and parts.replication_group is not None:
            which = {"ReplicationGroupId": parts.replication_group}
            waits_for = _delete_cache(lambda: caches.describe_replication_groups(**which)["ReplicationGroups"],
                                      lambda: caches.delete_replication_group(**which))
        return waits_for

    def _bill(self, deployed: Deployed) -> str:
        """Notes, once, what the run has cost with all that this deployment could still cost; modelled."""
        entry = self._ledger.get(deployed.run)
        if entry is None or entry.stack != deployed.stack or not entry.is_open:
            return ""
        steps = _order(entry).steps
        learner_gone_s, cache_gone_s = (steps.get(name, self._now()) for name in ("concurrency", "cache"))
        covered_until_s = max(learner_gone_s, entry.covered_until_s)
        # Of warm actors the block that has begun is billed whole.
        more_usd = (deployed.cache_usd_per_hour * max(0.0, cache_gone_s - covered_until_s)
                    + deployed.provisioned_usd_per_hour * _BLOCK_S) / 3600
        self._ledger.close(deployed.run, stack=deployed.stack, now_s=max(cache_gone_s, covered_until_s),
                           spent_usd=deployed.projected_usd(entry, learner_gone_s) + more_usd)
        return ""

    def _delete_stack(self, deployed: Deployed) -> str:
        formation = self._client("cloudformation")
        stack = find_stack(formation, deployed.stack)
        status = stack["StackStatus"] if stack else "DELETE_COMPLETE"
        if status == "DELETE_COMPLETE":
            return ""
        if status == "DELETE_FAILED":
            self._count_failure(deployed, what_is_left(formation, stack))
        if status != "DELETE_IN_PROGRESS":
            try:
                formation.delete_stack(StackName=deployed.stack)
            except botocore.exceptions.ClientError as error:
                if error.response["Error"]["Code"] != "ValidationError":
                    raise
                message = f"it is {status}: {error.response['Error']['Message']}"
                self._count_failure(deployed, message)
                return message
        stack = find_stack(formation, deployed.stack)
        status = stack["StackStatus"] if stack else "DELETE_COMPLETE"
        return "" if status == "DELETE_COMPLETE" else f"CloudFormation ({status})"

    def _count_failure(self, deployed: Deployed, problem: str) -> None:
        failures = self._ledger.count_failure(deployed.run, stack=deployed.stack)
        if failures in (1, 10) or failures % 60 == 0:
            self._tell(f"{deployed.name} could not be deleted ({failures} times)",
                       f"What costs money is gone; the rest is tried again every minute. {problem}")

    def _find_rest(self, deployed: Deployed, parts: _Parts) -> str:
        """What Describe still finds of it though the stack is gone."""
        if self._is_redeployed(deployed):
            return ""
        machines, functions = self._client("ec2"), self._client("lambda")
        rest = _instances(machines, EXPERIMENT_TAG, deployed.experiment)
        if parts.function and _found(
                lambda: functions.get_function_concurrency(FunctionName=parts.function)) is not None:
            rest.append(parts.function)
        return f"{', '.join(rest)}, which should be gone" if rest else ""

    def _is_redeployed(self, deployed: Deployed) -> bool:
        """Whether another stack of the same name is there by now, whose parts bear the same names."""
        stack = find_stack(self._client("cloudformation"), deployed.name)
        return stack is not None and stack["StackId"] != deployed.stack

    def _tell_end(self, deployed: Deployed, entry: Entry) -> None:
        order = _order(entry)
        steps = ", ".join(f"{name} after {at - order.ordered_at_s:.0f} s" for name, at in sorted(
            order.steps.items(), key=lambda step: step[1]))
        self._tell(f"{deployed.name} is gone",
                   f"{order.reason}. {_dollars(deployed, entry, self._now())} Steps: {steps}. The results are in the "
                   f"results bucket under {deployed.run}/")


def silent_s(entry: Entry, now_s: float) -> float:
    """For how long the learner's heartbeat has not changed, by the guard's clock; 0 where it has since it looked."""
    return now_s - entry.seen_at_s if entry.heartbeat_at_s == entry.seen_heartbeat_s else 0.0


def _order(entry: Entry) -> Order:
    if entry.order is None:
        raise TeardownError(f"the teardown of {entry.run} was never ordered")
    return entry.order


def _dollars(deployed: Deployed, entry: Entry, now_s: float) -> str:
    is_closed = _BILL in _order(entry).steps
    usd = entry.spent_usd if is_closed else deployed.projected_usd(entry, now_s)
    return (f"{'It has' if is_closed else 'So far it can have'} cost at most ${usd:.4f} of ${deployed.budget_usd:g} "
            "(modelled from list prices).")


def _parts(client: Any, stack_id: str) -> _Parts:
    """Also of a stack that is gone: CloudFormation remembers for 90 days what it had."""
    try:
        found = {one["ResourceType"]: one["PhysicalResourceId"] for one in _resources(client, stack_id)
                 if one.get("PhysicalResourceId")}
    except botocore.exceptions.ClientError as error:
        if "does not exist" not in error.response["Error"]["Message"]:
            raise
        return _Parts()
    alias = found.get("AWS::Lambda::Alias")
    return _Parts(
        found.get("AWS::AutoScaling::AutoScalingGroup"), found.get("AWS::Lambda::Function"),
        alias.rpartition(":")[2] if alias else None,
        found.get("AWS::ElastiCache::ServerlessCache"), found.get("AWS::ElastiCache::ReplicationGroup"))


def _instances(client: Any, tag: str, value: str) -> list[str]:
    """Those of that tag that are billed."""
    pages = client.get_paginator("describe_instances").paginate(Filters=[
        {"Name": f"tag:{tag}", "Values": [value]}, {"Name": "instance-state-name", "Values": _BILLED_STATES}])
    return sorted(one["InstanceId"] for page in pages for group in page["Reservations"] for one in group["Instances"])


def _found(describe: Callable[[], Mapping[str, Any] | list[Any]]) -> Any:
    """What Describe answers; null where it says that there is no such thing."""
    try:
        return describe()
    except botocore.exceptions.ClientError as error:
        if "NotFound" in error.response["Error"]["Code"]:
            return None
        raise


def _delete_cache(describe: Callable[[], list[Mapping[str, Any]]], delete: Callable[[], Any]) -> str:
    """Deletes a cache if it is there and lets itself be deleted; returns what is to be waited for."""
    found = _found(describe)
    if not found:
        return ""
    if found[0]["Status"] != "deleting":
        try:
            delete()
        except botocore.exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
            if "Invalid" not in code or "State" not in code:
                raise
            return f"it is {found[0]['Status']}"
    return "it is being deleted" if _found(describe) else ""
