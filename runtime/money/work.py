"""Paid work, and the meter that reserves and bills it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from runtime.experiment.section import Field, Section

Price = Annotated[float, Field(gt=0, le=1e6)]
"""A price. Sums of higher prices may not be finite."""
_Text = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$")]
"""Printable text."""


@dataclass(frozen=True)
class RoundBill:
    """One attempt at a round in dollars, replacements included, and the number of its cold starts."""

    actors_cost_usd: float
    provisioned_cost_usd: float
    learner_cost_usd: float
    infrastructure_cost_usd: float
    round_cost_usd: float
    cold_starts: int = 0


ACTOR = "actor"
"""The role of an actor; see `Work`."""


LEARNER = "learner"
"""The role of an invocation of the learner function."""


@dataclass(frozen=True)
class Work:
    """Names one piece of paid work, such as one invocation of an actor.

    Attributes:
        role: Kind of work: `ACTOR`, `LEARNER`, or any other role that has prices.
        slot: Index among the pieces of its role that may run at once, from 0. A warm sandbox serves the next work in
            its slot.
        attempt: Number of failed pieces of work in this slot before this one.
    """

    role: str
    slot: int
    attempt: int = 0


OutcomeStatus = Literal["ok", "error", "crashed", "timeout", "abandoned"]


@dataclass(frozen=True)
class Outcome:
    """How one invocation ended.

    Attributes:
        status: ``ok`` (the handler returned), ``error`` (it raised), ``crashed`` (its process died), ``timeout``,
            ``abandoned`` (the round no longer waited for it).
        response: The handler's return value if ``ok``.
        error: A message for users if something went wrong, otherwise empty.
        was_started: False if it was given up before it started. Then it costs nothing.
        billed_s: Billed seconds, without start-up unless it is metered.
        init_s: Billed seconds of a cold start. If metered, this actor's part, contained in ``billed_s``. Otherwise what
            a cold start would take.
        is_metered: Whether the platform reported the billed duration. Otherwise ``billed_s`` is counted here, or an
            upper bound.
        cpu_s, init_cpu_s: Measured CPU seconds of the invocation, if it made no environment and was served alone, and
            of its start-up, if known.
        waited_s: Seconds that its environment waited for something other than a CPU; None if they are unknown.
        replaced_process: How a process that was idle ended, if this is the first invocation of its replacement.
    """

    invocation_id: str
    status: OutcomeStatus
    response: Mapping[str, Any] | None = None
    error: str = ""
    was_started: bool = True
    billed_s: float = 0.0
    init_s: float = 0.0
    is_metered: bool = False
    cpu_s: float = 0.0
    init_cpu_s: float = 0.0
    waited_s: float | None = 0.0
    replaced_process: str = ""


@dataclass(frozen=True)
class Limits:
    """Time limits of a round's phases; the meter reserves this much.

    Attributes:
        actor_s: Limit of an actor, without its start-up.
        collect_s: Limit of all actors of a round together.
        update_s: Limit of detection, update and evaluation together.
        factor: The limits are this multiple of recent durations; 0 if the experiment sets them.
    """

    actor_s: float
    collect_s: float
    update_s: float
    factor: float = 0.0

    @property
    def is_tightened(self) -> bool:
        """Whether the limits are shorter than the experiment's."""
        return self.factor > 0.0

    @property
    def round_s(self) -> float:
        """Seconds for which standing resources are reserved."""
        return self.collect_s + self.update_s


class CostMeter(Protocol):
    """Reserves the worst case of all work before it starts, and settles actual use."""

    is_billed: bool
    """Whether someone bills what this counts. Then the clock must enforce a round's limits."""

    @property
    def limits(self) -> Limits:
        """The experiment's limits."""

    @property
    def free_usd(self) -> float:
        """Dollars that are neither spent nor reserved."""

    @property
    def spent_usd(self) -> float: ...

    @property
    def reserved_usd(self) -> float: ...

    def fits(self, actors: int, limits: Limits) -> bool:
        """Whether a round with this many actors and these limits fits in addition to current reservations."""

    def open_round(self, actors: int, *, smallest: int, limits: Limits | None = None) -> int:
        """Reserves a round with all actors that fit. Returns 0, and reserves nothing, if not even ``smallest`` fit."""

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Reserves a round without its actors. Returns False, and reserves nothing, if it does not fit."""

    def reserve(self, works: Sequence[Work]) -> int:
        """Reserves the worst case of each of these in the open round, in order. Returns how many fit."""

    def ahead(self, actors: int) -> AbstractContextManager[None]:
        """Returns a block in which up to ``actors`` further actors are reserved, if they fit."""

    def cancel(self, work: Work) -> None:
        """Frees the reservation of work that never started."""

    def settle(
        self, work: Work, outcome: Outcome, *, traffic_bytes: int = 0, answer_bytes: int = 0
    ) -> float:
        """Settles one reserved piece of work. Returns its billed seconds.

        Args:
            outcome: Its outcome. One that was not started costs nothing.
            traffic_bytes: Bytes that it moved through the cache.
            answer_bytes: Bytes of its trajectory, which may leave AWS.
        """

    def close_round(self, seconds: float) -> RoundBill: ...

    def add_spent(self, usd: float) -> None:
        """Counts dollars that were spent without a meter."""

    def forfeit(self) -> float:
        """Ends all reservations, and counts as spent what their work may have cost. Returns its dollars."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...


class LambdaPrices(Section):
    """Prices for one processor architecture, US dollars per GiB-second."""

    on_demand_usd: Price
    provisioned_capacity_usd: Price
    provisioned_duration_usd: Price


class PriceTable(Section):
    """List prices in US dollars of one region on one day.

    Attributes:
        as_of: The day, such as 2026-11-20.
        source: Their source, for users.
        functions: Prices by processor architecture; one may be missing.
        skus: For each price, the SKU of AWS's product and the day since which it is valid; empty if not looked up.
    """

    region: _Text
    as_of: Annotated[str, Field(pattern="^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
    source: _Text
    functions: Annotated[
        Mapping[Annotated[str, Field(pattern="^(x86_64|arm64)$")], LambdaPrices],
        Field(min_length=1),
    ]
    request_usd: Price
    instance_hour_usd: Mapping[str, Price]
    serverless_cache_gib_hour_usd: Price
    serverless_cache_gib_min: Price
    serverless_cache_ecpu_usd: Price
    volume_gib_month_usd: Price
    public_ipv4_hour_usd: Price
    put_usd: Price
    skus: Mapping[str, _Text] = {}
