"""An AWS account as far as the guard calls it, with a clock that only moves on request, and exact records of resources.

Learners and people are generators that yield how many seconds they do nothing.
"""

from __future__ import annotations

import datetime
import heapq
import itertools
import math
import pickle
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from runtime.aws.guard.parts import ALIAS, CACHE, GROUP
from runtime.times import CACHE_DELETION_S, TERMINATION_S

FUNCTION = "AWS::Lambda::Function"
HANG_S = 15.0
"""Longest duration of one of the guard's calls: two attempts."""


def refused(code: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "it")


def at(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # Ten times as fast as `copy.deepcopy`.


class Table:
    """DynamoDB, as far as the ledger uses it: assignments, and conditions joined by OR."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}

    def get_item(self, *, Key: Any, **_: Any) -> dict[str, Any]:
        item = self.items.get(Key["run"]["S"])
        return {"Item": _copied(item)} if item else {}

    def get_paginator(self, operation: str) -> Table:
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Items": _copied(list(self.items.values()))}]

    def update_item(
        self,
        *,
        Key: Any,
        UpdateExpression: str,
        ExpressionAttributeValues: Mapping[str, Any],
        ExpressionAttributeNames: Mapping[str, str] = MappingProxyType({}),
        ConditionExpression: str = "",
        **_: Any,
    ) -> dict[str, Any]:
        item = _copied(self.items.get(Key["run"]["S"], dict(Key)))

        def folder(path: str) -> tuple[dict[str, Any], str]:
            *before, last = [ExpressionAttributeNames.get(name, name) for name in path.split(".")]
            found = item
            for name in before:
                found = found.get(name, {}).get("M", {})
            return found, last

        def holds(term: str) -> bool:
            if (path := re.fullmatch(r"attribute_not_exists\((\S+)\)", term)) is not None:
                found, name = folder(path[1])
                return name not in found
            path, how, value = term.split(" ")
            found, name = folder(path)
            right = (
                ExpressionAttributeValues[value]
                if value.startswith(":")
                else folder(value)[0].get(folder(value)[1])
            )
            return name in found and (found[name] == right) == (how == "=")

        if ConditionExpression and not any(
            holds(term) for term in ConditionExpression.split(" OR ")
        ):
            raise refused("ConditionalCheckFailedException")
        for change in UpdateExpression.removeprefix("SET ").split(", "):
            target, _, value = change.split(" ")
            found, name = folder(target)
            found[name] = ExpressionAttributeValues[value]
        self.items[Key["run"]["S"]] = item
        return {"Attributes": _copied(item)}


@dataclass
class Machine:
    """An instance: when it is billed, and by which model."""

    name: str
    model: Any
    from_s: float
    until_s: float = math.inf


@dataclass
class Stack:
    """One deployment, as AWS knows it.

    Attributes:
        name: ``Nitro-EXPERIMENT``, the prefix of its parts' names.
        tags: Tags by which the guard finds it.
        prepared_s: When its change set was made.
        begun_s: When CloudFormation begins each part, by type; missing if never.
        made_s: When each exists and is billed; the group not before it launches.
        listed_s: Delay until CloudFormation lists a part that it begins.
        tagged_s: When the list of tags has it; it keeps a stack that is gone.
        gone_s: When each is gone.
        fails_s: When its creation fails by itself.
        rolled_back_s: When CloudFormation has rolled back all its parts.
        desired: Instances that its group wants.
    """

    name: str
    id: str
    tags: dict[str, str]
    prepared_s: float
    begun_s: dict[str, float]
    made_s: dict[str, float]
    listed_s: float = 0.0
    tagged_s: float = 0.0
    fails_s: float = math.inf
    rolled_back_s: float = math.inf
    complete_s: float = math.inf
    deleted_s: float = math.inf
    is_deleted: bool = False
    desired: int = 1
    concurrency: int | None = None
    gone_s: dict[str, float] = field(default_factory=dict)
    machines: list[Machine] = field(default_factory=list)

    def status(self, now_s: float) -> str:
        if self.is_deleted:
            return "DELETE_COMPLETE" if now_s >= self.deleted_s else "DELETE_IN_PROGRESS"
        if now_s >= self.fails_s:
            return "ROLLBACK_COMPLETE" if now_s >= self.rolled_back_s else "ROLLBACK_IN_PROGRESS"
        return "CREATE_COMPLETE" if now_s >= self.complete_s else "CREATE_IN_PROGRESS"

    def is_there(self, kind: str, now_s: float) -> bool:
        return self.begun_s.get(kind, math.inf) <= now_s < self.gone_s.get(kind, math.inf)

    def end(self, kind: str, at_s: float) -> None:
        self.gone_s[kind] = min(self.gone_s.get(kind, math.inf), at_s)

    def end_machines(self, at_s: float) -> None:
        for machine in self.machines:
            machine.until_s = min(machine.until_s, max(machine.from_s, at_s))

    def stood_s(self, kinds: tuple[str, ...]) -> float:
        """Returns how long the part of one of these types was billed."""
        return sum(
            max(0.0, self.gone_s[kind] - from_s)
            for kind, from_s in self.made_s.items()
            if kind in kinds
        )


class Account:
    """The account, its clock, and the learners and people that act in it.

    Attributes:
        hanging: Calls that name this get no answer.
        refusing: Share of refused questions. The guard must also be right without their answers.
    """

    def __init__(self, draw: random.Random, now_s: float = 1e6) -> None:
        self.draw, self.now_s, self.table = draw, now_s, Table()
        self.stacks: list[Stack] = []
        self.hanging = ""
        self.refusing = 0.0
        self._number = itertools.count()
        self._waiting: list[tuple[float, int, Iterator[float]]] = []

    def now(self) -> float:
        return self.now_s

    def act(self, who: Iterator[float]) -> None:
        """Starts an actor."""
        heapq.heappush(self._waiting, (self.now_s, next(self._number), who))

    def pass_time(self, seconds: float) -> None:
        """Advances the clock and runs all actors that are due meanwhile."""
        until_s = self.now_s + seconds
        while self._waiting and self._waiting[0][0] <= until_s:
            at_s, _, who = heapq.heappop(self._waiting)
            self.now_s = max(self.now_s, at_s)
            pause_s = next(who, None)
            if pause_s is not None:
                heapq.heappush(self._waiting, (self.now_s + pause_s, next(self._number), who))
        self.now_s = max(self.now_s, until_s)

    @property
    def is_quiet(self) -> bool:
        """Whether no actor is left."""
        return not self._waiting

    def client(self, service: str, *, is_quick: bool = False) -> Any:
        return self.table if service == "dynamodb" else _Api(self)


class _Api:
    """A client of every service."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        account = self._account
        answer = getattr(_Answers, operation)

        def call(**arguments: Any) -> Any:
            if account.hanging and account.hanging in str(arguments):
                account.pass_time(HANG_S)
                raise ReadTimeoutError(endpoint_url=operation)
            return answer(account, **arguments)

        return call

    def get_paginator(self, operation: str) -> Any:
        self._operation = operation
        return self

    def paginate(self, **arguments: Any) -> list[dict[str, Any]]:
        return [getattr(self, self._operation)(**arguments)]


class _Answers:
    """AWS' answers and actions, by operation."""

    @staticmethod
    def describe_stacks(account: Account, StackName: str | None = None) -> dict[str, Any]:
        found = [
            one
            for one in account.stacks
            if one.status(account.now_s) != "DELETE_COMPLETE" or StackName == one.id
        ]
        if StackName is not None:
            _check_name(StackName)
            found = [one for one in found if StackName in (one.id, one.name)]
            if not found:
                raise refused("ValidationError", f"Stack with id {StackName} does not exist")
        return {
            "Stacks": [
                {
                    "StackName": one.name,
                    "StackId": one.id,
                    "StackStatus": one.status(account.now_s),
                    "CreationTime": at(one.prepared_s),
                    "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
                }
                for one in found
            ]
        }

    @staticmethod
    def get_resources(
        account: Account, TagFilters: Any, ResourceTypeFilters: Any
    ) -> dict[str, Any]:
        assert ResourceTypeFilters == ["cloudformation:stack"]
        (wanted,) = TagFilters
        return {
            "ResourceTagMappingList": [
                {
                    "ResourceARN": one.id,
                    "Tags": [{"Key": key, "Value": value} for key, value in one.tags.items()],
                }
                for one in account.stacks
                if wanted["Key"] in one.tags and one.tagged_s <= account.now_s
            ]
        }

    @staticmethod
    def list_stack_resources(account: Account, StackName: str) -> dict[str, Any]:
        one = _stack(account, StackName)
        # A refusal during a teardown could cost more than any budget holds, because nothing is ended meanwhile.
        is_costly = (
            one.is_deleted or account.now_s >= one.fails_s or one.complete_s <= account.now_s
        )
        is_over = not any(one.is_there(kind, account.now_s) for kind in (GROUP, ALIAS, CACHE))
        if (is_over or not is_costly) and account.draw.random() < account.refusing:
            raise refused("Throttling")
        listed = []
        for kind, begun_s in one.begun_s.items():
            if begun_s + one.listed_s > account.now_s:
                continue
            is_taken_back = (
                one.gone_s.get(kind, math.inf) <= account.now_s
                and one.status(account.now_s) != "CREATE_COMPLETE"
            )
            listed.append(
                {
                    "LogicalResourceId": kind,
                    "ResourceType": kind,
                    "PhysicalResourceId": f"{one.name}-{kind}",
                    "ResourceStatus": "DELETE_COMPLETE" if is_taken_back else "CREATE_COMPLETE",
                    "LastUpdatedTimestamp": at(one.gone_s[kind] if is_taken_back else begun_s),
                }
            )
        return {"StackResourceSummaries": listed}

    @staticmethod
    def delete_stack(account: Account, StackName: str) -> None:
        one = _stack(account, StackName)
        if not one.is_deleted:
            one.is_deleted, one.deleted_s = (
                True,
                account.now_s + account.draw.uniform(0, CACHE_DELETION_S),
            )
            for kind in one.begun_s:
                # Parts that have not begun by now never begin.
                if one.begun_s[kind] > account.now_s:
                    one.made_s[kind] = math.inf
                one.end(kind, account.draw.uniform(account.now_s, one.deleted_s))
            one.desired = 0
            one.end_machines(one.gone_s.get(GROUP, account.now_s))

    @staticmethod
    def describe_auto_scaling_groups(
        account: Account, AutoScalingGroupNames: list[str]
    ) -> dict[str, Any]:
        return {
            "AutoScalingGroups": [
                {"MinSize": 0, "MaxSize": 1, "DesiredCapacity": one.desired}
                for one in _of(account, AutoScalingGroupNames[0])
                if one.is_there(GROUP, account.now_s)
            ]
        }

    @staticmethod
    def set_desired_capacity(
        account: Account, AutoScalingGroupName: str, DesiredCapacity: int
    ) -> None:
        for one in _of(account, AutoScalingGroupName):
            one.desired = DesiredCapacity

    @staticmethod
    def describe_instances(account: Account, Filters: Any) -> dict[str, Any]:
        (name,) = Filters[0]["Values"]
        return {
            "Reservations": [
                {"Instances": [{"InstanceId": machine.name}]}
                for one in account.stacks
                if name in (f"{one.name}-{GROUP}", one.name.removeprefix("Nitro-"))
                for machine in one.machines
                if machine.from_s <= account.now_s < machine.until_s
            ]
        }

    @staticmethod
    def terminate_instances(account: Account, InstanceIds: list[str]) -> None:
        for one in account.stacks:
            if any(machine.name in InstanceIds for machine in one.machines):
                one.end_machines(account.now_s + account.draw.uniform(0, TERMINATION_S))

    @staticmethod
    def get_provisioned_concurrency_config(
        account: Account, FunctionName: str, Qualifier: str
    ) -> dict[str, Any]:
        if not any(one.is_there(ALIAS, account.now_s) for one in _of(account, FunctionName)):
            raise refused("ProvisionedConcurrencyConfigNotFoundException")
        return {}

    @staticmethod
    def delete_provisioned_concurrency_config(
        account: Account, FunctionName: str, Qualifier: str
    ) -> None:
        for one in _of(account, FunctionName):
            one.end(ALIAS, account.now_s)

    @staticmethod
    def get_function_concurrency(account: Account, FunctionName: str) -> dict[str, Any]:
        found = [
            one
            for one in _of(account, FunctionName)
            if one.status(account.now_s) != "DELETE_COMPLETE"
        ]
        if not found:
            raise refused("ResourceNotFoundException")
        return (
            {}
            if found[0].concurrency is None
            else {"ReservedConcurrentExecutions": found[0].concurrency}
        )

    @staticmethod
    def put_function_concurrency(
        account: Account, FunctionName: str, ReservedConcurrentExecutions: int
    ) -> None:
        for one in _of(account, FunctionName):
            one.concurrency = ReservedConcurrentExecutions

    @staticmethod
    def describe_serverless_caches(account: Account, ServerlessCacheName: str) -> dict[str, Any]:
        return {"ServerlessCaches": _caches(account, ServerlessCacheName)}

    @staticmethod
    def delete_serverless_cache(account: Account, ServerlessCacheName: str) -> None:
        _end_cache(account, ServerlessCacheName)


def _check_name(stack: str) -> None:
    if not re.fullmatch(r"[a-zA-Z][-a-zA-Z0-9]*|arn:aws:[-a-zA-Z0-9:/._+]*", stack):
        raise refused(
            "ValidationError", f"Value '{stack}' at 'stackName' failed to satisfy constraint"
        )


def _stack(account: Account, stack_id: str) -> Stack:
    _check_name(stack_id)
    for one in account.stacks:
        if one.id == stack_id:
            return one
    raise refused("ValidationError", f"Stack with id {stack_id} does not exist")


def _of(account: Account, name: str) -> list[Stack]:
    """Returns the stack that has a part of that name now: the newest one."""
    return [one for one in account.stacks if name.startswith(f"{one.name}-")][-1:]


def _caches(account: Account, name: str) -> list[dict[str, Any]]:
    found = [one for one in _of(account, name) if one.is_there(CACHE, account.now_s)]
    if not found:
        raise refused("CacheNotFoundFault")
    return [
        {
            "Status": "deleting"
            if CACHE in one.gone_s
            else "creating"
            if _is_creating(account, one)
            else "available"
        }
        for one in found
    ]


def _is_creating(account: Account, one: Stack) -> bool:
    return one.made_s.get(CACHE, 0.0) > account.now_s


def _end_cache(account: Account, name: str) -> None:
    for one in _of(account, name):
        if _is_creating(account, one):
            raise refused("InvalidCacheStateFault")
        if CACHE in one.made_s:
            one.end(CACHE, account.now_s + account.draw.uniform(0, CACHE_DELETION_S))
