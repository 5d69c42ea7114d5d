"""Work that costs money, and who reserves and bills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from runtime.ports.fleet import Outcome
from runtime.settings.section import Field, Section

Price = Annotated[float, Field(gt=0, le=1e6)]
"""Sums of higher prices may not be finite."""
_Text = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$")]
"""What can be printed."""


@dataclass(frozen=True)
class RoundBill:
    """One attempt at a round in dollars, replacements included."""

    actors_cost_usd: float
    provisioned_cost_usd: float
    learner_cost_usd: float
    infrastructure_cost_usd: float
    round_cost_usd: float


ACTOR = "actor"
"""The role of an actor; see `Work`."""


LEARNER = "learner"
"""The role of an invocation of the learner function."""


@dataclass(frozen=True)
class Work:
    """Names one piece of paid work, such as one invocation of an actor.

    Attributes:
        role: What it does: `ACTOR`, `LEARNER`, or any other role that has prices.
        slot: Place among the pieces of its role that may run at once, from 0; an environment that is warm serves
            the next work in its slot.
        attempt: 0, or how many pieces of work in this slot failed before this one.
    """

    role: str
    slot: int
    attempt: int = 0


@dataclass(frozen=True)
class Limits:
    """For how long the phases of a round may go on; that much is reserved.

    Attributes:
        actor_s: An actor, without its start-up.
        collect_s: A round's actors, together.
        update_s: Detection, update and evaluation, together.
        factor: So many times what the phases took lately; 0 if they are as the experiment says.
    """

    actor_s: float
    collect_s: float
    update_s: float
    factor: float = 0.0

    @property
    def is_tightened(self) -> bool:
        """Whether they are shorter than the experiment says."""
        return self.factor > 0.0

    @property
    def round_s(self) -> float:
        """What stands is reserved for so long."""
        return self.collect_s + self.update_s


class CostMeter(Protocol):
    """Reserves the worst case of all work before it starts, and settles what it really used."""

    is_by_the_clock: bool
    """Whether what stands is billed by the clock, so that it is the clock that must keep a round's limits."""

    @property
    def limits(self) -> Limits:
        """As the experiment says."""

    @property
    def free_usd(self) -> float:
        """What is neither spent nor reserved."""

    @property
    def spent_usd(self) -> float: ...

    @property
    def reserved_usd(self) -> float: ...

    def fits(self, actors: int, limits: Limits) -> bool:
        """Whether a round with so many actors and such limits would fit beside all that is reserved now."""

    def open_round(self, actors: int, *, smallest: int, limits: Limits | None = None) -> int:
        """Reserves a round with as many actors as fit; 0, and nothing reserved, where not even ``smallest`` do."""

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Reserves a round but for its actors; False, and nothing reserved, where it does not fit."""

    def reserve(self, works: Sequence[Work]) -> int:
        """Reserves the worst case of each of these in the open round, in order; returns for how many it fits."""

    def ahead(self, actors: int) -> AbstractContextManager[None]:
        """A block in which as many actors more are reserved as fit, at most ``actors``."""

    def settle(self, work: Work, outcome: Outcome | None, *, traffic_bytes: int = 0) -> float:
        """Settles one reserved piece of work; returns its billed seconds.

        Args:
            outcome: How it ended; None, or one that was not started, costs nothing.
            traffic_bytes: Bytes that it moved through the cache.
        """

    def close_round(self, *, actors_started: int, seconds: float) -> RoundBill: ...

    def add_spent(self, usd: float) -> None:
        """Counts dollars that were spent where no meter saw them."""

    def forfeit(self) -> float:
        """Counts all that is still reserved as spent; returns it in dollars."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...


class WorkTimes:
    """Seconds for which a learner's work counts in the bill; these are those that were measured."""

    def expected_s(self) -> dict[str, float]:
        """Returns what a round's phases will be billed, as `runtime.cost.limits.PhaseTimes` takes it, if known."""
        return {}

    def update_s(self, samples: int, measured_s: float) -> float:
        """Of an update with so many samples."""
        return measured_s

    def detect_s(self, products: int, samples: int, measured_s: float) -> float:
        """Of a measurement with so many Hessian-vector products on so many samples."""
        return measured_s

    def evaluate_s(self, steps: int, measured_s: float) -> float:
        """Of an evaluation with so many steps."""
        return measured_s


class LambdaPrices(Section):
    """Of one processor architecture, US dollars per GiB-second."""

    on_demand_usd: Price
    provisioned_capacity_usd: Price
    provisioned_duration_usd: Price


class PriceTable(Section):
    """List prices in US dollars of one region on one day.

    Attributes:
        as_of: The day, such as 2026-11-20.
        source: Where they were taken from, for people.
        functions: By processor architecture; one may be missing.
        skus: By price, the SKU of AWS' product and the day since which its price holds; empty if nobody asked.
    """

    region: _Text
    as_of: Annotated[str, Field(pattern="^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
    source: _Text
    functions: Annotated[Mapping[Annotated[str, Field(pattern="^(x86_64|arm64)$")], LambdaPrices], Field(min_length=1)]
    request_usd: Price
    instance_hour_usd: Mapping[str, Price]
    serverless_cache_gib_hour_usd: Price
    serverless_cache_gib_min: Price
    serverless_cache_ecpu_usd: Price
    cache_node_hour_usd: Price
    volume_gib_month_usd: Price
    public_ipv4_hour_usd: Price
    put_usd: Price
    skus: Mapping[str, _Text] = {}
