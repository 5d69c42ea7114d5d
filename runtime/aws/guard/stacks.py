"""Finds an account's deployments by the tags of their stacks, however they were made.

The tags are on the stack itself, because the CDK's own tags reach only resources.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.guard.ledger import Entry
from runtime.aws.stacks import WITHOUT_RESOURCES, find_stack, tags_of
from runtime.names import EXPERIMENT_TAG, RUN_TAG, STACK_PREFIX, TAG_PREFIX, run_key, stack_name

_STACK_ID = re.compile(
    rf"arn:[\w-]+:cloudformation:[\w-]+:\d+:stack/{STACK_PREFIX}[A-Za-z0-9-]+/[A-Za-z0-9-]+"
)
_LIMIT_MAX = 1e6
NEVER = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Stood:
    """When each part of a deployment existed (from, until), in seconds since 1970; `NEVER` if it never did."""

    learner: tuple[float, float] = NEVER
    cache: tuple[float, float] = NEVER
    provisioned: tuple[float, float] = NEVER


@dataclass(frozen=True, kw_only=True)
class GuardedStack:
    """One experiment's stack and its limits.

    Attributes:
        experiment: Its name.
        run: ``EXPERIMENT/RUN``, the key of its ledger entry.
        stack: The stack's id.
        name: The stack's name.
        status: CloudFormation's status.
        created_at_s: When it began to cost money, in seconds since 1970; not before its creation was executed.
        budget_usd: Budget of the whole run; 0 if the tags do not give it.
        tail_usd: Part of the budget that is kept for the teardown.
        burn_usd_per_hour: Highest hourly cost of all its parts, even if idle.
        floor_usd_per_hour: Lowest hourly cost, with the cheapest instance type that may be launched.
        cache_usd_per_hour, provisioned_usd_per_hour: Shares of the cache and of the warm actors in these.
        lifetime_s: How long it may exist.
        unreadable: Problems with its tags; empty if there are none.
        learner_from_s, cache_from_s, provisioned_from_s: When each part can have begun to cost money, if later.
        has_other_limits: Whether the tags may be those of an update that has not replaced anything.
    """

    experiment: str
    run: str
    stack: str
    name: str
    status: str
    created_at_s: float
    budget_usd: float = 0.0
    tail_usd: float = 0.0
    burn_usd_per_hour: float = 0.0
    floor_usd_per_hour: float = 0.0
    cache_usd_per_hour: float = 0.0
    provisioned_usd_per_hour: float = 0.0
    lifetime_s: float = 0.0
    unreadable: str = ""
    learner_from_s: float = 0.0
    cache_from_s: float = 0.0
    provisioned_from_s: float = 0.0
    has_other_limits: bool = False

    def begun(self, entry: Entry | None, looked_at_s: float) -> GuardedStack:
        """Returns the deployment with the times at which it and its parts began to cost money.

        A stack is created with its change set, and CreationTime keeps that time even if the change set is executed days
        later. So the guard uses its own last look before it first saw the stack, when nothing of it existed. That is
        never too late, exact to a minute, and needs no extra requests or rights.

        Args:
            entry: The ledger's entry, where these times are recorded.
            looked_at_s: Time of the guard's last look, used if the entry does not have the stack yet.
        """
        began_s = entry.began_s(self.stack) if entry is not None else None
        parts: Mapping[str, Any] = entry.from_s(self.stack) if entry is not None else {}
        return replace(
            self,
            created_at_s=max(self.created_at_s, looked_at_s if began_s is None else began_s),
            **parts,
        )

    def stood(
        self, learner_until_s: float, cache_until_s: float, provisioned_until_s: float
    ) -> Stood:
        """Returns the longest times that all parts can have existed, up to these ends, in seconds since 1970."""

        def span(from_s: float, until_s: float) -> tuple[float, float]:
            began_s = max(self.created_at_s, from_s)
            return began_s, max(began_s, until_s)

        return Stood(
            learner=span(self.learner_from_s, learner_until_s),
            cache=span(self.cache_from_s, cache_until_s),
            provisioned=span(self.provisioned_from_s, provisioned_until_s),
        )

    def projected_usd(self, entry: Entry | None, now_s: float) -> float:
        """Returns the most that the run can have cost by ``now_s``, earlier deployments included; modelled.

        Args:
            entry: The ledger's entry, however old. Time that it does not cover counts at the burn rate, so a learner
                that is silent or has a wrong clock does not look cheap.
            now_s: Seconds since 1970.
        """
        return self.cost_usd(entry, self.stood(now_s, now_s, now_s))

    def cost_usd(self, entry: Entry | None, stood: Stood) -> float:
        """Returns the most that the run, with earlier deployments, can have cost if this one's parts existed that long.

        A learner's figures cannot go below what the guard knows: dollars once spent stay spent, and parts that existed
        cost at least the price of the cheapest instance type, even if the learner claims to cover that time. Only the
        learner reports what actors cost. The function's reserved concurrency and the lifetime bound a false report.
        """
        if entry is None:
            return self._stood_usd(stood, self.created_at_s, self.burn_usd_per_hour)
        covered_until_s, burn_usd_per_hour = self.created_at_s, self.burn_usd_per_hour
        if entry.stack == self.stack:
            covered_until_s = max(covered_until_s, entry.covered_until_s)
            # Until this instance has written, the entry may hold another instance's figure.
            burn_usd_per_hour = max(burn_usd_per_hour, entry.burn_usd_per_hour)
        said_usd = entry.promised_usd + self._stood_usd(stood, covered_until_s, burn_usd_per_hour)
        return max(
            said_usd,
            entry.before_usd + self._stood_usd(stood, self.created_at_s, self.floor_usd_per_hour),
        )

    def _stood_usd(self, stood: Stood, since_s: float, usd_per_hour: float) -> float:
        learner_usd_per_hour = max(
            0.0, usd_per_hour - self.cache_usd_per_hour - self.provisioned_usd_per_hour
        )
        return sum(
            rate * max(0.0, until_s - max(since_s, from_s)) / 3600
            for rate, (from_s, until_s) in (
                (learner_usd_per_hour, stood.learner),
                (self.cache_usd_per_hour, stood.cache),
                (self.provisioned_usd_per_hour, stood.provisioned),
            )
        )


def tags_of_limits(
    *,
    experiment: str,
    run: str,
    budget_usd: float,
    tail_usd: float,
    burn_usd_per_hour: float,
    floor_usd_per_hour: float,
    cache_usd_per_hour: float,
    provisioned_usd_per_hour: float,
    lifetime_hours: float,
) -> dict[str, str]:
    """Returns the tags that identify a deployment and carry its limits."""
    return {
        EXPERIMENT_TAG: experiment,
        RUN_TAG: run,
        f"{TAG_PREFIX}budget-usd": str(budget_usd),
        f"{TAG_PREFIX}tail-usd": _rounded_up(tail_usd),
        f"{TAG_PREFIX}burn-usd-per-hour": _rounded_up(burn_usd_per_hour),
        f"{TAG_PREFIX}floor-usd-per-hour": _rounded_up(floor_usd_per_hour),
        f"{TAG_PREFIX}cache-usd-per-hour": _rounded_up(cache_usd_per_hour),
        f"{TAG_PREFIX}provisioned-usd-per-hour": _rounded_up(provisioned_usd_per_hour),
        f"{TAG_PREFIX}lifetime-hours": str(lifetime_hours),
    }


@dataclass(frozen=True, kw_only=True)
class FoundStacks:
    """What the guard found in an account and region.

    Attributes:
        deployments: Those that have or may get resources, by name.
        unseen: Why other stacks, by id, or the list itself could not be read. There may be deployments among them.
        foreign: Why the guard has no rights on other stacks with a deployment's tags, by name.
    """

    deployments: list[GuardedStack]
    unseen: dict[str, str]
    foreign: dict[str, str]


def find_deployments(client: Client, known: Iterable[str] = ()) -> FoundStacks:
    """Finds stacks by their tags, and describes each alone. An account's other stacks cost no requests.

    AWS lists a tag some time after the stack's creation, and may list it for hours after its deletion.

    Args:
        client: Makes boto3 clients by service name.
        known: Ids of stacks to look at even if no list has them.
    """
    found, unseen, foreign, tagged = [], {}, {}, set()
    try:
        tagged = {
            str(one["ResourceARN"])
            for one in list_all(
                client("resourcegroupstaggingapi"),
                "get_resources",
                "ResourceTagMappingList",
                TagFilters=[{"Key": EXPERIMENT_TAG}],
                ResourceTypeFilters=["cloudformation:stack"],
            )
        }
    except AWS_ERRORS as error:
        unseen["the list of stacks"] = f"{type(error).__name__}: {error}"
    for stack in sorted(tagged.union(known)):
        name = stack.split("/")[1]
        if not is_ours(stack):
            foreign[name] = (
                f"it has an experiment's tags, but its name is {name}: the guard has no right to end it"
            )
            continue
        try:
            described = find_stack(client("cloudformation"), stack)
        except AWS_ERRORS as error:
            unseen[stack] = f"{type(error).__name__}: {error}"
            continue
        if described and (deployed := read_deployment(described)):
            found.append(deployed)
    return FoundStacks(
        deployments=sorted(found, key=lambda one: one.name), unseen=unseen, foreign=foreign
    )


def is_ours(stack: str) -> bool:
    """Returns whether a text is the id of a stack on which the guard has rights."""
    return _STACK_ID.fullmatch(stack) is not None


def read_deployment(stack: Mapping[str, Any], *, is_deleted: bool = False) -> GuardedStack | None:
    """Returns a stack's deployment; None if it is not ours or has no resources.

    Args:
        stack: As ``describe_stacks`` returns it.
        is_deleted: Also read a stack without resources.
    """
    tags = tags_of(stack)
    if EXPERIMENT_TAG not in tags or (stack["StackStatus"] in WITHOUT_RESOURCES and not is_deleted):
        return None
    limits: dict[str, Any] = {}
    problems = []
    for name in (
        "budget-usd",
        "tail-usd",
        "burn-usd-per-hour",
        "floor-usd-per-hour",
        "cache-usd-per-hour",
        "provisioned-usd-per-hour",
        "lifetime-hours",
    ):
        value = _positive(tags.get(TAG_PREFIX + name))
        if value is None:
            problems.append(f"its tag {TAG_PREFIX}{name} is {tags.get(TAG_PREFIX + name)!r}")
        limits[name.replace("-", "_")] = value or 0.0
    experiment, name = tags[EXPERIMENT_TAG], stack["StackName"]
    is_ours = name == stack_name(experiment)
    if not is_ours:
        # A copy of a stack must not replace the real one in the run's entry.
        problems.append(f"its name is {name}, not {stack_name(experiment)}")
    return GuardedStack(
        experiment=experiment,
        stack=stack["StackId"],
        run=run_key(experiment if is_ours else name, tags.get(RUN_TAG, "unknown")),
        name=stack["StackName"],
        status=stack["StackStatus"],
        created_at_s=stack["CreationTime"].timestamp(),
        lifetime_s=3600 * limits.pop("lifetime_hours"),
        unreadable="; ".join(problems),
        **limits,
    )


def _rounded_up(usd: float) -> str:
    return f"{math.ceil(usd * 10_000) / 10_000:.4f}"


def _positive(text: str | None) -> float | None:
    """Reads a number from 0 to the highest allowed limit; None if it is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= _LIMIT_MAX else None
