"""Bills a run: reserves the worst case of all work before it starts, and settles its actual cost."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runtime.errors import BudgetError
from runtime.money.budget import Budget
from runtime.money.model import INIT_SECONDS_MAX, PROVISIONED_BLOCK_S, CostModel, Standing
from runtime.money.work import ACTOR, LEARNER, Limits, Outcome, RoundBill, Work
from runtime.records.observers import EventSink

BETWEEN_ROUNDS_S = 60.0
"""Reserved for checkpoints and uploads if time is billed by the clock."""
_ROUND = "round"
_PROMISED = "promised"
_LEDGER = "ledger"


@dataclass(frozen=True)
class BillingClock:
    """Since when the parts of a deployment or a cluster are billed, in seconds since 1970.

    The times come from the guard's notes, so that the learner and the guard bill the same.

    Attributes:
        since_s: When the deployment began to cost money.
        learner_from_s: Earliest time of its first instance with volume and address, if later.
        cache_from_s: Earliest time of its cache.
        provisioned_from_s: Earliest time of its warm actors.
        now: Returns the time.
        begins: Called before a round's first reservation with the round's latest end. It may end the run instead.
    """

    since_s: float
    learner_from_s: float = 0.0
    cache_from_s: float = 0.0
    provisioned_from_s: float = 0.0
    now: Callable[[], float] = time.time
    begins: Callable[[float], None] = lambda _: None


class Meter:
    """The bill of a run, which reserves the worst case of all work before it starts.

    On this machine it counts seconds at list prices. They are never billed, so work costs at most its reservation,
    and slow work is not ended. With a `BillingClock`, it bills all parts by the clock, also between rounds. A part
    costs nothing before it was made. Time before this learner's own start that has not been billed counts at the price
    of the most expensive instance type.

    Attributes:
        budget: What is spent and reserved.
        is_billed: Whether someone bills what this counts. Then the clock must enforce a round's limits.
    """

    def __init__(
        self,
        model: CostModel,
        budget: Budget,
        *,
        clock: BillingClock | None = None,
        init_s: float = INIT_SECONDS_MAX,
        concurrency: int = 1,
        events: EventSink | None = None,
    ) -> None:
        """Starts with nothing spent.

        Args:
            clock: When the parts are billed; None if they are not billed.
            init_s: The longest start-up of an actor that is billed.
            concurrency: Actors that ran at once.
            events: Records once that the environment's waits are unknown.
        """
        self.budget = budget
        self._model = model
        self._init_s = init_s
        self._concurrency = concurrency
        self._events = events
        self.is_billed = clock is not None
        # Nothing is billed by the clock: time passes with the rounds only.
        self._clock = clock or BillingClock(0.0, now=lambda: 0.0)
        self._started_s = self._clock.now()
        self._billed_until_s = self._clock.since_s
        self._is_redeployed = False
        self._provisioned_s = 0.0
        self._blocks = 0
        self._warm_slots: set[tuple[str, int]] = set()
        self._round_usd: defaultdict[str, float] = defaultdict(float)
        self._cold_starts = 0
        self._limits = model.limits
        self._reserved_s = 0.0

    @property
    def limits(self) -> Limits:
        """The experiment's limits."""
        return self._model.limits

    @property
    def free_usd(self) -> float:
        return self.budget.free_usd

    @property
    def spent_usd(self) -> float:
        return self.budget.spent_usd

    @property
    def reserved_usd(self) -> float:
        return self.budget.reserved_usd

    @property
    def covered_until_s(self) -> float:
        """Spent and reserved cover all existing parts until this time, in seconds since 1970."""
        return self._billed_until_s + self._reserved_s * (_ROUND in self.budget.reservations)

    @property
    def burn_usd_per_hour(self) -> float:
        """Hourly cost of all existing parts."""
        return self._model.burn_usd_per_hour

    def fits(self, actors: int, limits: Limits) -> bool:
        """Returns whether a round with these actors and limits would fit in addition to all current reservations."""
        return self.budget.fits(
            [
                *self._round_amounts(limits).values(),
                *(self._worst_case_usd(Work(ACTOR, slot), limits) for slot in range(actors)),
            ]
        )

    def open_round(self, actors: int, *, smallest: int, limits: Limits | None = None) -> int:
        """Reserves the round's worst case with the most actors that fit, at most ``actors``.

        Args:
            limits: The round's limits; None for the experiment's.

        Returns:
            The number of actors; 0, and nothing reserved, if fewer than ``smallest`` fit.
        """
        limits = limits or self.limits
        if not self.fits(min(smallest, actors), limits) or not self.open_standing(limits):
            return 0
        return self.reserve([Work(ACTOR, slot) for slot in range(actors)])

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Reserves a round's worst case without its actors; returns False and reserves nothing if it does not fit.

        It includes a write of the ledger, and the learner function's first invocations with theirs.
        """
        limits = limits or self.limits
        self._clock.begins(self._clock.now() + limits.round_s + BETWEEN_ROUNDS_S)
        if not self.budget.reserve(self._round_amounts(limits)):
            return False
        self._limits = limits
        self._reserved_s = self._round_seconds_max(limits)
        return True

    def reserve(self, works: Sequence[Work]) -> int:
        """Reserves the worst case of each piece of work in the open round, in order; returns how many fit.

        Also reserves the write of the ledger that must follow. Learner functions take the place of those promised.

        Raises:
            BudgetError: One is reserved already. Nothing is reserved then.
        """
        amounts = {_name(work): self._worst_case_usd(work, self._limits) for work in works}
        promise = _PROMISED if any(work.role == LEARNER for work in works) else ""
        while amounts and not self.budget.reserve(self._write | amounts, instead_of=promise):
            amounts.popitem()
        return len(amounts)

    @contextmanager
    def ahead(self, actors: int) -> Iterator[None]:
        """Reserves up to ``actors`` more actors within a block, if they fit.

        A ledger saved in the block covers actors started later, so it need not be saved for each of them.
        """
        names = [f"{ACTOR} ahead {index}" for index in range(actors)]
        # Their slots are unknown, so they may start cold.
        usd = self._worst_case_usd(Work(ACTOR, 2**31), self._limits)
        try:
            for name in names:
                self.budget.reserve({name: usd})
            yield
        finally:
            for name in names:
                self.budget.release(name)

    def wrote_ledger(self) -> None:
        """Spends a write of the ledger outside this machine, which the last reservation paid for.

        A write that nothing reserved for, such as the first one after an outage, is spent like the outage itself.
        """
        usd = self._model.ledger_usd
        self.budget.release(_LEDGER)
        self.budget.spend(usd)
        self._round_usd[_LEDGER] += usd

    def cancel(self, work: Work) -> None:
        """Frees the reservation of work that never started, at no cost.

        Raises:
            BudgetError: It is not reserved.
        """
        self.budget.settle(_name(work), 0.0)

    def settle(
        self, work: Work, outcome: Outcome, *, traffic_bytes: int = 0, answer_bytes: int = 0
    ) -> float:
        """Settles one reserved piece of work.

        A slot's first invocation is a cold start. So is a replacement of failed work or of a lost process. A billed
        cost above the worst case is recorded in full and leaves less free: ending the run would not recover it.

        Args:
            outcome: How it ended. One that was not started costs nothing.
            traffic_bytes: Bytes that it moved through the cache.
            answer_bytes: Bytes of its trajectory, which may leave AWS.

        Returns:
            Its billed seconds, with its start-up if it started cold.

        Raises:
            BudgetError: It is not reserved.
        """
        name = _name(work)
        if not outcome.was_started:
            self.cancel(work)
            return 0.0
        prices = self._model.roles[work.role]
        billed_s = outcome.billed_s
        is_provisioned = work.slot < prices.provisioned
        if outcome.is_metered:
            # A provisioned environment starts before billing begins.
            is_cold = outcome.init_s > 0.0
            is_provisioned = is_provisioned and not is_cold
        elif is_cold := self._starts_cold(work):
            billed_s += min(
                outcome.init_s, self._init_s if work.role == ACTOR else INIT_SECONDS_MAX
            )
        usd = prices.usd(
            is_provisioned=is_provisioned,
            billed_s=billed_s,
            traffic_bytes=traffic_bytes,
            answer_bytes=answer_bytes,
        )
        if not self.is_billed:
            usd = min(usd, self.budget.reservations.get(name, 0.0))
        self.budget.settle(name, usd)
        self._round_usd[work.role] += usd
        self._cold_starts += is_cold and work.role == ACTOR
        self._warm_slots.add((work.role, work.slot))
        if outcome.waited_s is None and self._events is not None:
            self._events.append("waits_unknown")
            self._events = None
        return billed_s

    def close_round(self, seconds: float) -> RoundBill:
        """Settles the learner, the infrastructure and provisioned capacity for a round.

        Work of roles other than the actor's is part of the learner's cost. Actors in flight, if any, stay reserved;
        work that ends in the next round is billed there.

        Args:
            seconds: What the round took; billed are at most those reserved, or those by the billing clock.

        Raises:
            BudgetError: The round is billed and took longer than its worst case. Its full cost is recorded.
        """
        seconds = self._unbilled_s if self.is_billed else min(seconds, self._reserved_s)
        standing = self._standing(seconds)
        is_within = self.budget.settle(_ROUND, standing.usd)
        self._advance(seconds)
        for name in (_PROMISED, _LEDGER):
            self.budget.release(name)
        actors_usd = self._round_usd.pop(ACTOR, 0.0)
        infrastructure_usd = standing.infrastructure_usd + self._round_usd.pop(_LEDGER, 0.0)
        learner_usd = standing.learner_usd + sum(self._round_usd.values())
        bill = RoundBill(
            actors_usd,
            standing.provisioned_usd,
            learner_usd,
            infrastructure_usd,
            actors_usd + standing.provisioned_usd + learner_usd + infrastructure_usd,
            self._cold_starts,
        )
        self._round_usd.clear()
        self._cold_starts = 0
        if not is_within:
            raise BudgetError(
                f"the round took {seconds:.1f} s, longer than the {self._reserved_s:.1f} s reserved for it: "
                "fleet.round_deadline_s + learner.update_timeout_s"
            )
        return bill

    def catch_up(self) -> float:
        """Spends idle time since the last bill, even beyond the budget; returns it in dollars."""
        before_usd = self.spent_usd
        seconds = self._unbilled_s
        self.budget.spend(self._standing(seconds).usd)
        self._advance(seconds)
        return self.spent_usd - before_usd

    def forfeit(self, ran_s: float = math.inf) -> float:
        """Settles every reservation at the most that its work may have cost, and bills parts until now.

        That is the whole reservation if someone bills it, because its end is unknown. A billed round's reservation
        counts only if its deployment is over.

        Args:
            ran_s: Seconds that the work can have run; infinite if unknown.

        Returns:
            The dollars of reservations that count as spent.
        """
        self._round_usd.clear()
        self._cold_starts = 0
        if self.is_billed and not self._is_redeployed:
            self.budget.release(_ROUND)
        self._is_redeployed = False
        before_usd = self.spent_usd
        reservations = self.budget.reservations
        is_unknown = self.is_billed or math.isinf(ran_s)
        for name, usd in reservations.items():
            role = name.partition(" ")[0]
            alike = sum(other.partition(" ")[0] == role for other in reservations)
            share = min(1.0, self._concurrency / alike)
            self.budget.settle(
                name, usd if is_unknown else min(usd, self._ran_usd(role, ran_s * share))
            )
        forfeited_usd = self.spent_usd - before_usd
        self.catch_up()
        return forfeited_usd

    def _ran_usd(self, role: str, ran_s: float) -> float:
        """Returns the cost of what is reserved once for this role, if it ran for these seconds of a CPU."""
        if role in self._model.roles:
            return self._model.roles[role].ran_usd(ran_s)
        return self._standing(ran_s).usd if role == _ROUND else 0.0

    def _round_amounts(self, limits: Limits) -> dict[str, float]:
        """Returns the worst case of a round without its actors, by the names of its reservations."""
        model = self._model
        amounts = {_ROUND: self._standing(self._round_seconds_max(limits)).usd}
        if model.functions_promised:
            function_usd = model.roles[LEARNER].worst_case_usd() + model.ledger_usd
            amounts[_PROMISED] = model.functions_promised * function_usd
        return amounts | self._write

    @property
    def _write(self) -> dict[str, float]:
        """Cost of the next write of the ledger, by its reservation's name; empty if that is reserved, or free."""
        usd = self._model.ledger_usd
        return {_LEDGER: usd} if usd and _LEDGER not in self.budget.reservations else {}

    def _round_seconds_max(self, limits: Limits) -> float:
        """Returns the seconds to reserve; if billed, with those since the last bill and some between two rounds."""
        between_s = BETWEEN_ROUNDS_S if self.is_billed else 0.0
        return self._unbilled_s + limits.round_s + between_s

    def _worst_case_usd(self, work: Work, limits: Limits) -> float:
        """Returns the most that this work may cost.

        Tightened limits shorten only an actor's, and only where nothing is billed. On Lambda, an actor may run until
        its function's own time-out, and any environment may start cold.
        """
        prices = self._model.roles[work.role]
        if self.is_billed or work.role != ACTOR or not limits.is_tightened:
            return prices.worst_case_usd()
        return prices.worst_case_usd(
            limits.actor_s, init_s=self._init_s if self._starts_cold(work) else 0.0
        )

    def _starts_cold(self, work: Work) -> bool:
        """Returns whether its bill includes a start-up that no platform reported."""
        if work.slot < self._model.roles[work.role].provisioned:
            return False
        return work.attempt > 0 or (work.role, work.slot) not in self._warm_slots

    @property
    def _unbilled_s(self) -> float:
        return max(0.0, self._clock.now() - self._billed_until_s)

    def _standing(self, seconds: float) -> Standing:
        """Returns the cost of all existing parts for this many more seconds."""
        learner_s = self._stands_s(seconds, self._clock.learner_from_s)
        return self._model.standing(
            learner_s,
            blocks=self._blocks_after(seconds) - self._blocks,
            cache_s=self._stands_s(seconds, self._clock.cache_from_s),
            predecessor_s=min(
                learner_s,
                max(0.0, self._started_s - max(self._billed_until_s, self._clock.learner_from_s)),
            ),
        )

    def _stands_s(self, seconds: float, from_s: float) -> float:
        """Returns how many of the next ``seconds`` to bill have a part that exists from ``from_s``."""
        return min(seconds, max(0.0, self._billed_until_s + seconds - from_s))

    def _blocks_after(self, seconds: float) -> int:
        """Returns how many blocks of provisioned capacity have begun after the next seconds."""
        stood_s = self._provisioned_s + self._stands_s(seconds, self._clock.provisioned_from_s)
        return math.ceil(stood_s / PROVISIONED_BLOCK_S)

    def _advance(self, seconds: float) -> None:
        """Counts these seconds as billed."""
        self._blocks = self._blocks_after(seconds)
        self._provisioned_s += self._stands_s(seconds, self._clock.provisioned_from_s)
        self._billed_until_s += seconds

    def get_state(self) -> dict[str, Any]:
        return {
            "budget": self.budget.get_state(),
            "billed_until_s": self._billed_until_s,
            "billed_s": self._provisioned_s,
            "blocks": self._blocks,
            "warm_slots": sorted(slot for role, slot in self._warm_slots if role == ACTOR),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state from `get_state`; changes nothing if it is invalid.

        If the deployment is new, the time since the old one's last bill is not billed. Neither is the time of a run
        that was on one machine until now.

        Raises:
            ValueError, KeyError, TypeError: It is not a meter's state.
        """
        billed_until_s = float(state["billed_until_s"])
        provisioned_s = float(state["billed_s"])
        blocks = int(state["blocks"])
        warm_slots = {(ACTOR, int(slot)) for slot in state["warm_slots"]}
        self.budget.set_state(state["budget"])
        self._is_redeployed = billed_until_s < self._clock.since_s
        self._billed_until_s = max(billed_until_s, self._clock.since_s)
        # A new deployment's provisioned capacity begins a new block.
        self._provisioned_s = (
            float(blocks * PROVISIONED_BLOCK_S) if self._is_redeployed else provisioned_s
        )
        self._blocks = blocks
        self._warm_slots = warm_slots


def steady_clock() -> Callable[[], float]:
    """Returns a clock of seconds since 1970 that ignores changes of the system clock."""
    started_s, started_at_s = time.time(), time.monotonic()
    return lambda: started_s + time.monotonic() - started_at_s


def _name(work: Work) -> str:
    return f"{work.role} {work.slot}.{work.attempt}"
