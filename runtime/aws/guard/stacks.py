"""Finds an account's deployments by the tags of their stacks, and decides which must be ended now, and why.

The tags are on the stack itself, because the CDK's own tags reach only resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.ledger import FINISHED, PARTS, STARTING, Entry
from runtime.aws.stacks import DELETED, WITHOUT_RESOURCES, find_stack, tags_of
from runtime.names import EXPERIMENT_TAG, RUN_TAG, STACK_PREFIX, TAG_PREFIX, run_key
from runtime.times import LATE_S, MAKING_LIMIT_S, MISSING_S, STARTING_S

_LIMIT_MAX = 1e6
_FAILED = (
    "CREATE_FAILED",
    "DELETE_FAILED",
    "ROLLBACK_IN_PROGRESS",
    "ROLLBACK_COMPLETE",
    "ROLLBACK_FAILED",
)
"""Statuses of a failed stack. It keeps its name while it has one of them."""


@dataclass(frozen=True, kw_only=True)
class GuardedStack:
    """One experiment's stack and its limits.

    Attributes:
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
        from_s: When each of the ledger's `PARTS` can have begun to cost money, if later.
    """

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
    from_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def experiment(self) -> str:
        """Name of its experiment."""
        return self.name.removeprefix(STACK_PREFIX)

    def begun(self, entry: Entry | None, looked_at_s: float) -> GuardedStack:
        """Returns the deployment with the times at which it and its parts began to cost money.

        A stack is created with its change set, and CreationTime keeps that time even if the change set is executed days
        later. So the guard uses its own last look before it first saw the stack, when nothing of it existed. That is
        never too late, exact to a minute, and needs no extra requests or rights.

        Args:
            entry: The ledger's entry, where these times are recorded.
            looked_at_s: Time of the guard's last look, used if the entry does not have the stack yet.
        """
        if entry is None or entry.stack != self.stack:
            return replace(self, created_at_s=max(self.created_at_s, looked_at_s))
        return replace(
            self,
            created_at_s=max(self.created_at_s, entry.began_at_s),
            from_s=entry.parts_from_s,
        )

    def projected_usd(self, entry: Entry | None, now_s: float) -> float:
        """Returns the most that the run can have cost by ``now_s``, earlier deployments included; modelled.

        Args:
            entry: The ledger's entry, however old. Time that it does not cover counts at the burn rate, so a learner
                that is silent or has a wrong clock does not look cheap.
            now_s: Seconds since 1970.
        """
        return self.cost_usd(entry, dict.fromkeys(PARTS, now_s))

    def cost_usd(self, entry: Entry | None, until_s: Mapping[str, float]) -> float:
        """Returns the most that the run can have cost if each of this deployment's `PARTS` existed until then.

        A learner's figures cannot go below what the guard knows: parts that existed cost at least the price of the
        cheapest instance type, even if the learner claims to cover that time. Only the learner reports what actors
        cost. The function's reserved concurrency and the lifetime bound a false report.
        """
        if entry is None:
            return self._stood_usd(0.0, self.burn_usd_per_hour, until_s)
        covered_until_s, burn_usd_per_hour = 0.0, self.burn_usd_per_hour
        if entry.stack == self.stack:
            covered_until_s = entry.covered_until_s
            # Until this instance has written, the entry may hold another instance's figure.
            burn_usd_per_hour = max(burn_usd_per_hour, entry.burn_usd_per_hour)
        said_usd = entry.promised_usd + self._stood_usd(covered_until_s, burn_usd_per_hour, until_s)
        least_usd = entry.before_usd + self._stood_usd(0.0, self.floor_usd_per_hour, until_s)
        return max(said_usd, least_usd)

    def _stood_usd(
        self, since_s: float, usd_per_hour: float, until_s: Mapping[str, float]
    ) -> float:
        """Returns the cost of all parts since then, at an hourly cost of all of them."""
        rates = {"cache": self.cache_usd_per_hour, "provisioned": self.provisioned_usd_per_hour}
        rates["learner"] = max(0.0, usd_per_hour - sum(rates.values()))
        since_s = max(since_s, self.created_at_s)
        return sum(
            rate * max(0.0, until_s[part] - max(since_s, self.from_s.get(part, 0.0))) / 3600
            for part, rate in rates.items()
        )

    def reason_to_end(self, entry: Entry | None, now_s: float) -> str:
        """Returns why the deployment must be taken down now, for people; empty if it may continue.

        The budget counts as used up when the most that the run can have cost exceeds the budget without its tail. The
        tail pays for the teardown, so a teardown ordered within one interval still ends within the budget. A learner's
        own budget has the same limit, so one that works never reaches the guard's.

        Args:
            entry: The ledger's entry; None if it has none.
            now_s: The guard's time. All times except the learner's own use the guard's clock.
        """
        if self.status == DELETED:
            return "its stack was deleted by someone else"
        if self.status in _FAILED:
            return (
                f"its stack is {self.status}: its events, and boot/ in the results bucket, tell why"
            )
        making_s = self.from_s.get("learner", 0.0) - self.created_at_s
        if self.status == "CREATE_IN_PROGRESS" and making_s > MAKING_LIMIT_S:
            return (
                f"the first phase of its start, all but the learner, was not over after {making_s / 60:.0f} minutes: "
                "see its stack's events"
            )
        known = entry if entry is not None and entry.stack == self.stack else None
        if known is not None and known.state == FINISHED:
            return f"it has finished: {known.reason}"
        # For the minutes until the check's refusal of an update is rolled back, the tags have another run's limits.
        if not (self.status.startswith("UPDATE") and self.status.endswith("_IN_PROGRESS")):
            if self.unreadable:
                return f"its possible cost is unknown: {self.unreadable}"
            if now_s - self.created_at_s > self.lifetime_s:
                return f"its lifetime of {self.lifetime_s / 3600:g} hours is over"
            projected_usd = self.projected_usd(entry, now_s)
            if projected_usd > self.budget_usd - self.tail_usd:
                return (
                    f"its budget is used up: it can have cost ${projected_usd:.4f}, and ${self.tail_usd:.4f} of "
                    f"${self.budget_usd:.4f} are kept for taking it down"
                )
        if known is None or not known.heartbeat_at_s:
            if now_s - self.created_at_s > MISSING_S:
                return f"its learner or pool never reported, in {MISSING_S / 60:g} minutes"
            return ""
        limit_s = STARTING_S if known.state == STARTING else LATE_S
        if silent_s(known, now_s) > limit_s:
            return (
                f"its learner or pool ({known.state}) has not reported for {limit_s / 60:g} minutes"
            )
        return ""


def silent_s(entry: Entry, now_s: float) -> float:
    """Returns how long the heartbeat has not changed, by the guard's clock; 0 if it changed since the last look."""
    return now_s - entry.seen_at_s if entry.heartbeat_at_s == entry.seen_heartbeat_s else 0.0


_LIMITS = (
    "budget_usd",
    "tail_usd",
    "burn_usd_per_hour",
    "floor_usd_per_hour",
    "cache_usd_per_hour",
    "provisioned_usd_per_hour",
    "lifetime_hours",
)


def tags_of_limits(*, experiment: str, run: str, **limits: float) -> dict[str, str]:
    """Returns the tags that identify a deployment and carry its limits: attributes of `GuardedStack`, in hours."""
    return {
        EXPERIMENT_TAG: experiment,
        RUN_TAG: run,
        **{_tag_of(name): str(limits[name]) for name in _LIMITS},
    }


def _tag_of(limit: str) -> str:
    return TAG_PREFIX + limit.replace("_", "-")


def find_deployments(
    client: Client, known: Mapping[str, str] | None = None, *, asking: str = ""
) -> tuple[list[GuardedStack], dict[str, str]]:
    """Finds stacks by their tags, and describes each alone. An account's other stacks cost no requests.

    AWS lists a tag some time after the stack's creation, and may list it for hours after its deletion.

    Args:
        client: Makes boto3 clients by service name.
        known: Runs of stacks, by their ids, to return even if no list has them or they are gone.
        asking: Id of another stack to look at.

    Returns:
        The deployments by name, and why other stacks, by id, or the list itself could not be read. There may be
        deployments among them.
    """
    runs = known or {}
    found: list[GuardedStack] = []
    unread: dict[str, str] = {}
    listed = {asking} - {""}
    try:
        listed |= _tagged(client)
    except AWS_ERRORS as error:
        unread["the list of stacks"] = f"{type(error).__name__}: {error}"
    for stack in sorted(listed.union(runs)):
        try:
            described = find_stack(client("cloudformation"), stack)
        except AWS_ERRORS as error:
            unread[stack] = f"{type(error).__name__}: {error}"
            continue
        deployed = read_deployment(described) if described else None
        if stack in runs:
            # CloudFormation forgets a deleted stack after 90 days, and an update changes the tag of the run.
            found.append(replace(deployed or _gone(stack), run=runs[stack]))
        elif deployed and deployed.status != DELETED:
            found.append(deployed)
    return sorted(found, key=lambda one: one.name), unread


def _tagged(client: Client) -> set[str]:
    """Returns ids of stacks that have an experiment's tag and a name on which the guard has rights."""
    tagged = list_all(
        client("resourcegroupstaggingapi"),
        "get_resources",
        "ResourceTagMappingList",
        TagFilters=[{"Key": EXPERIMENT_TAG}],
        ResourceTypeFilters=["cloudformation:stack"],
    )
    stacks = {str(one["ResourceARN"]) for one in tagged}
    return {stack for stack in stacks if stack.split("/")[1].startswith(STACK_PREFIX)}


def _gone(stack: str) -> GuardedStack:
    return GuardedStack(
        run="", stack=stack, name=stack.split("/")[1], status=DELETED, created_at_s=0.0
    )


def read_deployment(stack: Mapping[str, Any]) -> GuardedStack | None:
    """Returns a stack's deployment; None if it has not the name of an experiment's, or never had resources.

    Args:
        stack: As ``describe_stacks`` returns it.
    """
    tags, name = tags_of(stack), stack["StackName"]
    if not name.startswith(STACK_PREFIX) or EXPERIMENT_TAG not in tags:
        return None
    if stack["StackStatus"] in WITHOUT_RESOURCES and stack["StackStatus"] != DELETED:
        return None
    limits: dict[str, Any] = {}
    problems = []
    for limit in _LIMITS:
        text = tags.get(_tag_of(limit))
        value = _positive(text)
        if value is None:
            problems.append(f"its tag {_tag_of(limit)} is {text!r}")
        limits[limit] = value or 0.0
    return GuardedStack(
        run=run_key(name.removeprefix(STACK_PREFIX), tags.get(RUN_TAG, "unknown")),
        stack=stack["StackId"],
        name=name,
        status=stack["StackStatus"],
        created_at_s=stack["CreationTime"].timestamp(),
        lifetime_s=3600 * limits.pop("lifetime_hours"),
        unreadable="; ".join(problems),
        **limits,
    )


def _positive(text: str | None) -> float | None:
    """Reads a number from 0 to the highest allowed limit; None if it is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= _LIMIT_MAX else None
