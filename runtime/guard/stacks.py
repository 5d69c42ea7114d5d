"""The deployments that an account has, found by the tags of their stacks: whoever made them, and however."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runtime.aws.stacks import WITHOUT_RESOURCES, all_stacks, tags_of
from runtime.guard.ledger import Entry
from runtime.names import EXPERIMENT_TAG, RUN_TAG, TAG_PREFIX, run_key, stack_name

_LIMIT_MAX = 1e6
NEVER = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Stood:
    """From when to when the parts of a deployment stood, seconds since 1970; `NEVER` if they never did."""

    learner: tuple[float, float] = NEVER
    cache: tuple[float, float] = NEVER
    provisioned: tuple[float, float] = NEVER


@dataclass(frozen=True, kw_only=True)
class GuardedStack:
    """One experiment's stack, and the limits that it was deployed with.

    Attributes:
        experiment: Its name.
        run: ``EXPERIMENT/RUN``, the key of its entry in the ledger.
        stack: The stack's id.
        name: The stack's name.
        status: As CloudFormation says it.
        created_at_s: Since when it costs money, seconds since 1970: not before its creation was executed.
        budget_usd: Of the whole run; 0 if the tags do not say it.
        tail_usd: The part of it that is kept for the teardown.
        burn_usd_per_hour: What exists of it costs at most so much, whether anything is trained or not.
        floor_usd_per_hour: And at least so much, with the cheapest instance type that may be launched.
        cache_usd_per_hour, provisioned_usd_per_hour: The cache's and the warm actors' parts of that.
        lifetime_s: How long it may exist.
        unreadable: What is wrong with its tags; empty if nothing is.
        learner_from_s, cache_from_s, provisioned_from_s: From when on each part can have cost money, if that is later.
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

    def begun(self, entry: Entry | None, looked_at_s: float) -> GuardedStack:
        """With the times from which it and its parts cost money, instead of that at which somebody prepared it.

        A stack is created with its change set, and begins when somebody executes that: minutes later, or days.

        Args:
            entry: The ledger's, where that is noted.
            looked_at_s: When the guard looked last. If it is not noted yet, nothing of it existed then.
        """
        began_s = entry.began_s(self.stack) if entry is not None else None
        parts: Mapping[str, Any] = entry.from_s(self.stack) if entry is not None else {}
        return replace(self, created_at_s=max(self.created_at_s, looked_at_s if began_s is None else began_s), **parts)

    def stood(self, learner_until_s: float, cache_until_s: float, provisioned_until_s: float) -> Stood:
        """From when to when all parts can have stood, if they did until these times, in seconds since 1970."""
        def span(from_s: float, until_s: float) -> tuple[float, float]:
            began_s = max(self.created_at_s, from_s)
            return began_s, max(began_s, until_s)

        return Stood(learner=span(self.learner_from_s, learner_until_s), cache=span(self.cache_from_s, cache_until_s),
                     provisioned=span(self.provisioned_from_s, provisioned_until_s))

    def projected_usd(self, entry: Entry | None, now_s: float) -> float:
        """The most that the run can have cost by ``now_s``, with all deployments before this one; modelled.

        Args:
            entry: The ledger's, as old as it may be: what it does not cover is counted at the burn rate. So a learner
                that is silent, or whose clock is wrong, is not taken to be cheap.
            now_s: Seconds since 1970.
        """
        return self.cost_usd(entry, self.stood(now_s, now_s, now_s))

    def cost_usd(self, entry: Entry | None, stood: Stood) -> float:
        """The most that the run can have cost, with all deployments before this one, if just that stood of this one.

        What a learner says is not believed below what the guard knows by itself: dollars that were spent stay spent,
        and what stood has cost at least the price of the cheapest instance type, whatever is said to be covered.
        """
        if entry is None:
            return self._stood_usd(stood, self.created_at_s, self.burn_usd_per_hour)
        covered_until_s, burn_usd_per_hour = self.created_at_s, self.burn_usd_per_hour
        if entry.stack == self.stack:
            covered_until_s = max(covered_until_s, entry.covered_until_s)
            # What the learner says may be that of another instance, before this one has written.
            burn_usd_per_hour = max(burn_usd_per_hour, entry.burn_usd_per_hour)
        said_usd = entry.promised_usd + self._stood_usd(stood, covered_until_s, burn_usd_per_hour)
        return max(said_usd, entry.before_usd + self._stood_usd(stood, self.created_at_s, self.floor_usd_per_hour))

    def _stood_usd(self, stood: Stood, since_s: float, usd_per_hour: float) -> float:
        learner_usd_per_hour = max(0.0, usd_per_hour - self.cache_usd_per_hour - self.provisioned_usd_per_hour)
        return sum(rate * max(0.0, until_s - max(since_s, from_s)) / 3600 for rate, (from_s, until_s) in (
            (learner_usd_per_hour, stood.learner), (self.cache_usd_per_hour, stood.cache),
            (self.provisioned_usd_per_hour, stood.provisioned)))


def tags_of_limits(
    *, experiment: str, run: str, budget_usd: float, tail_usd: float, burn_usd_per_hour: float,
    floor_usd_per_hour: float, cache_usd_per_hour: float, provisioned_usd_per_hour: float, lifetime_hours: float,
) -> dict[str, str]:
    """The tags by which a deployment is found, and told how far it may go."""
    return {EXPERIMENT_TAG: experiment, RUN_TAG: run, f"{TAG_PREFIX}budget-usd": str(budget_usd),
            f"{TAG_PREFIX}tail-usd": _rounded_up(tail_usd),
            f"{TAG_PREFIX}burn-usd-per-hour": _rounded_up(burn_usd_per_hour),
            f"{TAG_PREFIX}floor-usd-per-hour": _rounded_up(floor_usd_per_hour),
            f"{TAG_PREFIX}cache-usd-per-hour": _rounded_up(cache_usd_per_hour),
            f"{TAG_PREFIX}provisioned-usd-per-hour": _rounded_up(provisioned_usd_per_hour),
            f"{TAG_PREFIX}lifetime-hours": str(lifetime_hours)}


def find_deployments(client: Any) -> list[GuardedStack]:
    """All deployments of the account and region that have resources, or may still get some; by name.

    Args:
        client: Of CloudFormation.

    Raises:
        ClientError: CloudFormation refuses.
        BotoCoreError: CloudFormation cannot be asked.
    """
    found = [deployed for stack in all_stacks(client) if (deployed := read_deployment(stack)) is not None]
    return sorted(found, key=lambda one: one.name)


def read_deployment(stack: Mapping[str, Any], *, is_deleted: bool = False) -> GuardedStack | None:
    """The deployment that such a stack is; None if it is none of ours, or has nothing.

    Args:
        stack: As ``describe_stacks`` gives it.
        is_deleted: Read one that has nothing, too.
    """
    tags = tags_of(stack)
    if EXPERIMENT_TAG not in tags or (stack["StackStatus"] in WITHOUT_RESOURCES and not is_deleted):
        return None
    limits, problems = {}, []
    for name in ("budget-usd", "tail-usd", "burn-usd-per-hour", "floor-usd-per-hour", "cache-usd-per-hour",
                 "provisioned-usd-per-hour", "lifetime-hours"):
        value = _positive(tags.get(TAG_PREFIX + name))
        if value is None:
            problems.append(f"its tag {TAG_PREFIX}{name} is {tags.get(TAG_PREFIX + name)!r}")
        limits[name.replace("-", "_")] = value or 0.0
    experiment, name = tags[EXPERIMENT_TAG], stack["StackName"]
    is_ours = name == stack_name(experiment)
    if not is_ours:
        # A copy: in the entry of the run that it names it would take the real one's place.
        problems.append(f"its name is {name}, not {stack_name(experiment)}")
    return GuardedStack(
        experiment=experiment, stack=stack["StackId"],
        run=run_key(experiment if is_ours else name, tags.get(RUN_TAG, "unknown")),
        name=stack["StackName"], status=stack["StackStatus"], created_at_s=stack["CreationTime"].timestamp(),
        lifetime_s=3600 * limits.pop("lifetime_hours"), unreadable="; ".join(problems), **limits)


def _rounded_up(usd: float) -> str:
    return f"{math.ceil(usd * 10_000) / 10_000:.4f}"


def _positive(text: str | None) -> float | None:
    """A number from 0 to what no limit exceeds; None if it is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0.0 <= value <= _LIMIT_MAX else None
