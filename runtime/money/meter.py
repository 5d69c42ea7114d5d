"""Bills a run: reserves the worst case of all work before it starts, and settles its actual cost."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from runtime.errors import BudgetError
from runtime.money.budget import Budget
from runtime.money.model import (
    INIT_SECONDS_MAX,
    PROVISIONED_BLOCK_S,
    CostModel,
    FunctionPrices,
    Standing,
)
from runtime.money.work import ACTOR, LEARNER, Limits, Outcome, RoundBill, Work
from runtime.records.observers import EventSink

BETWEEN_ROUNDS_S = 60.0
"""Reserved for checkpoints and uploads if time is billed by the clock."""
_BASE = "round"
_PROMISED = "promised"
_LEDGER = "ledger"
_SECONDS_MAX = 1e9
"""An upper bound for any duration: about thirty years."""
_UNKNOWN = Work(ACTOR, 2**31)
"""An actor whose slot is unknown, so it may start cold."""


class Meter:
    """Counts the seconds of this machine at list prices; see `runtime.money.work.CostMeter`.

    Nobody bills them. So work costs at most what was reserved for it, and nothing ends for being slow.
    """

    is_billed = False

    def __init__(
        self,
        model: CostModel,
        budget: Budget,
        *,
        init_s: float = INIT_SECONDS_MAX,
        ran_s: float = math.inf,
        concurrency: int = 1,
        events: EventSink | None = None,
    ) -> None:
        """Starts with nothing spent.

        Args:
            init_s: The longest start-up of an actor that is billed.
            ran_s: Seconds that a killed process ran after its last ledger, which `forfeit` counts; infinite if unknown.
            concurrency: Actors that ran at once.
            events: Records work whose duration is unknown.
        """
        self._model, self.budget, self._init_s, self._events = model, budget, init_s, events
        self._ran_s, self._concurrency = ran_s, concurrency
        self._billed_s = 0.0
        self._blocks = 0
        self._warm_slots: set[tuple[str, int]] = set()
        self._round_usd: defaultdict[str, float] = defaultdict(float)
        self._cold_starts = 0
        self._reserved_s = 0.0
        self._limits = model.limits
        self._has_told_waits = False

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

    def forfeit(self) -> float:
        """Counts what reserved work ran as spent, at most its reservations; all of them if that is unknown."""
        self._begin_bill()
        if math.isinf(self._ran_s):
            return self.budget.forfeit()
        ran_s, self._ran_s = self._ran_s, math.inf
        reserved_usd: defaultdict[str, float] = defaultdict(float)
        counts: Counter[str] = Counter()
        for name, usd in self.budget.reservations.items():
            role = name.partition(" ")[0]
            reserved_usd[role] += usd
            counts[role] += 1
            self.budget.release(name)
        spent_usd = self.budget.spent_usd
        for role, usd in reserved_usd.items():
            if role in self._model.roles:
                at_once = counts[role] if role != ACTOR else min(counts[role], self._concurrency)
                used_usd = self._model.roles[role].ran_usd(at_once * ran_s, counts[role])
            else:
                used_usd = self._standing(ran_s).usd if role == _BASE else 0.0
            self.add_spent(min(usd, used_usd))
        return self.budget.spent_usd - spent_usd

    def add_spent(self, usd: float) -> None:
        """Counts dollars spent without this meter, even if they exceed the budget."""
        self.budget.spend(usd)

    def fits(self, actors: int, limits: Limits) -> bool:
        """Returns whether a round with these actors and limits would fit in addition to all current reservations."""
        actors_usd = (self._worst_case_usd(Work(ACTOR, slot), limits) for slot in range(actors))
        return self.budget.holds([*self._round_amounts(limits).values(), *actors_usd])

    def open_round(self, actors: int, *, smallest: int, limits: Limits | None = None) -> int:
        """Reserves the round's worst case with the most actors that fit, at most ``actors``.

        Args:
            limits: The round's limits; None for the experiment's.

        Returns:
            The number of actors; 0, and nothing reserved, if fewer than ``smallest`` fit.
        """
        if not self.open_standing(limits):
            return 0
        works = [Work(ACTOR, slot) for slot in range(actors)]
        granted = self.reserve(works)
        if granted < min(smallest, actors):
            for name in (_BASE, _PROMISED, _LEDGER, *map(_name, works[:granted])):
                self.budget.release(name)
            return 0
        return granted

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Reserves a round's worst case without its actors; returns False and reserves nothing if it does not fit.

        It includes a write of the ledger, and the learner function's first invocations with theirs.
        """
        limits = limits or self._model.limits
        amounts = self._round_amounts(limits)
        if not self.budget.holds(amounts.values()):
            return False
        self._reserve_all(amounts)
        self._limits, self._reserved_s = limits, self._round_seconds_max(limits)
        return True

    def reserve(self, works: Sequence[Work]) -> int:
        """Reserves the worst case of each piece of work in the open round, in order; returns how many fit.

        Also reserves the write of the ledger that must follow. Learner functions take the place of those promised.

        Raises:
            BudgetError: One is reserved already, or its role has no prices. Nothing is reserved then.
        """
        amounts = {_name(work): self._worst_case_usd(work, self._limits) for work in works}
        if len(amounts) < len(works) or any(map(self.budget.is_reserved, amounts)):
            raise BudgetError(f"one of {', '.join(amounts)} is reserved already")
        promise = _PROMISED if any(work.role == LEARNER for work in works) else ""
        while amounts:
            wanted = self._write_amounts | amounts
            if self.budget.holds(wanted.values(), instead_of=promise):
                self.budget.release(promise)
                self._reserve_all(wanted)
                break
            amounts.popitem()
        return len(amounts)

    def wrote_ledger(self) -> None:
        """Spends a write of the ledger outside this machine, which the last reservation paid for.

        A write that nothing reserved for, such as the first one after an outage, is spent like the outage itself.
        """
        usd = self._model.ledger_usd
        self.budget.release(_LEDGER)
        self.budget.spend(usd)
        self._round_usd[_LEDGER] += usd

    def _reserve_all(self, amounts: Mapping[str, float]) -> None:
        """Reserves what is known to fit."""
        for name, usd in amounts.items():
            self.budget.reserve(name, usd)

    @contextmanager
    def ahead(self, actors: int) -> Iterator[None]:
        """Reserves more actors within a block: as many as fit, at most ``actors``.

        A ledger saved in the block covers actors started later, so it need not be saved for each of them.
        """
        names = [f"{ACTOR} ahead {index}" for index in range(actors)]
        try:
            for name in names:
                if not self.budget.reserve(name, self._worst_case_usd(_UNKNOWN, self._limits)):
                    break
            yield
        finally:
            for name in names:
                self.budget.release(name)

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
        cost above the worst case is recorded in full and leaves less free: ending the run would not recover it. If its
        seconds are not finite, negative, or absurd, the whole reservation is spent, and an event records that.

        Args:
            outcome: How it ended. One that was not started costs nothing.
            traffic_bytes: Bytes that it moved through the cache.
            answer_bytes: Bytes of its trajectory.

        Returns:
            Its billed seconds, with its start-up if it started cold.

        Raises:
            BudgetError: It is not reserved, or its role has no prices.
        """
        prices, name = self._prices_of(work), _name(work)
        if not outcome.was_started:
            self.cancel(work)
            return 0.0
        if not all(0.0 <= seconds < _SECONDS_MAX for seconds in (outcome.billed_s, outcome.init_s)):
            usd = self._spend(work, self.budget.reserved_under(name))
            self._tell(
                "usage_unknown",
                **vars(work),
                billed_s=str(outcome.billed_s),
                init_s=str(outcome.init_s),
                usd=usd,
            )
            return prices.timeout_s
        billed_s, is_provisioned = outcome.billed_s, prices.is_provisioned(work.slot)
        if outcome.is_metered:
            # A provisioned environment starts before billing begins.
            is_provisioned = is_provisioned and outcome.init_s == 0.0
            is_cold = outcome.init_s > 0.0
        elif is_cold := bool(outcome.replaced_process) or self._starts_cold(work):
            billed_s += min(
                outcome.init_s, self._init_s if work.role == ACTOR else INIT_SECONDS_MAX
            )
        usd = prices.usd(
            is_provisioned=is_provisioned,
            billed_s=billed_s,
            traffic_bytes=traffic_bytes,
            answer_bytes=answer_bytes,
        )
        self._spend(work, usd if self.is_billed else min(usd, self.budget.reserved_under(name)))
        self._cold_starts += is_cold and work.role == ACTOR
        self._warm_slots.add((work.role, work.slot))
        if outcome.waited_s is None and not self.is_billed and not self._has_told_waits:
            self._has_told_waits = True
            self._tell("waits_unknown")
        return billed_s

    def _spend(self, work: Work, usd: float) -> float:
        self.budget.settle(_name(work), usd)
        self._round_usd[work.role] += usd
        return usd

    def _tell(self, event: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.append(event, **fields)

    def close_round(self, seconds: float) -> RoundBill:
        """Settles the learner, the infrastructure and provisioned capacity for the ``seconds`` of a round.

        Work of roles other than the actor's is part of the learner's cost. Actors in flight, if any, stay reserved;
        work that ends in the next round is billed there.

        Raises:
            BudgetError: The round is billed and took longer than its worst case. Its full cost is recorded.
        """
        seconds = self._ended_s(seconds)
        standing = self._standing(seconds)
        is_within = self.budget.settle(_BASE, standing.usd)
        self._advance(seconds)
        for name in (_PROMISED, _LEDGER):
            self.budget.release(name)
        actors_usd, ledger_usd = (self._round_usd.pop(kind, 0.0) for kind in (ACTOR, _LEDGER))
        learner_usd = standing.learner_usd + sum(self._round_usd.values())
        infrastructure_usd = standing.infrastructure_usd + ledger_usd
        bill = RoundBill(
            actors_usd,
            standing.provisioned_usd,
            learner_usd,
            infrastructure_usd,
            actors_usd + standing.provisioned_usd + learner_usd + infrastructure_usd,
            self._cold_starts,
        )
        self._begin_bill()
        if not is_within:
            why = (
                "under tightened limits"
                if self._limits.is_tightened
                else "fleet.round_deadline_s + learner.update_timeout_s"
            )
            raise BudgetError(
                f"the round took {seconds:.1f} s, longer than the {self._reserved_s:.1f} s "
                f"reserved for it ({why})"
            )
        return bill

    def _begin_bill(self) -> None:
        self._round_usd.clear()
        self._cold_starts = 0

    def _round_amounts(self, limits: Limits) -> dict[str, float]:
        """Returns the worst case of a round without its actors, by the names of its reservations."""
        amounts = {_BASE: self._standing(self._round_seconds_max(limits)).usd}
        if LEARNER in self._model.roles:
            each_usd = self._model.roles[LEARNER].worst_case_usd() + self._model.ledger_usd
            amounts[_PROMISED] = self._model.functions_promised * each_usd
        return amounts | self._write_amounts

    @property
    def _write_amounts(self) -> dict[str, float]:
        """Cost of the next write of the ledger, by its reservation's name; empty if that is reserved, or free."""
        is_paid = not self._model.ledger_usd or self.budget.is_reserved(_LEDGER)
        return {} if is_paid else {_LEDGER: self._model.ledger_usd}

    def _ended_s(self, seconds: float) -> float:
        """Returns the seconds that a round costs: at most those that were reserved."""
        return min(seconds, self._reserved_s)

    def _prices_of(self, work: Work) -> FunctionPrices:
        if work.role not in self._model.roles:
            raise BudgetError(
                f"work of role {work.role!r} has no prices; known: {', '.join(self._model.roles)}"
            )
        return self._model.roles[work.role]

    def _worst_case_usd(self, work: Work, limits: Limits) -> float:
        prices = self._prices_of(work)
        if work.role != ACTOR or not limits.is_tightened:
            return prices.worst_case_usd()
        return prices.worst_case_usd(
            limits.actor_s, init_s=self._init_s if self._starts_cold(work) else 0.0
        )

    def _starts_cold(self, work: Work) -> bool:
        """Returns whether its bill includes a start-up that no platform reported."""
        is_provisioned = self._prices_of(work).is_provisioned(work.slot)
        return not is_provisioned and (
            work.attempt > 0 or (work.role, work.slot) not in self._warm_slots
        )

    def _round_seconds_max(self, limits: Limits) -> float:
        return limits.round_s

    def _standing(self, seconds: float) -> Standing:
        """Returns the cost of this many more seconds of all that stands."""
        return self._model.standing(seconds, blocks=self._new_blocks(seconds))

    def _new_blocks(self, seconds: float) -> int:
        """Returns how many blocks of provisioned capacity begin in the next seconds."""
        return self._blocks_until(self._billed_s + self._provisioned_s(seconds)) - self._blocks

    def _advance(self, seconds: float) -> None:
        """Counts these seconds as billed."""
        self._billed_s += self._provisioned_s(seconds)
        self._blocks = self._blocks_until(self._billed_s)

    def _provisioned_s(self, seconds: float) -> float:
        """Returns the part of the next ``seconds`` that has provisioned capacity."""
        return seconds

    def get_state(self) -> dict[str, Any]:
        return {
            "budget": self.budget.get_state(),
            "billed_s": self._billed_s,
            "blocks": self._blocks,
            "warm_slots": sorted(slot for role, slot in self._warm_slots if role == ACTOR),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state from `get_state`; changes nothing if it is invalid.

        Raises:
            ValueError, KeyError, TypeError: It is not a meter's state.
        """
        billed_s, blocks, warm_slots = state["billed_s"], state["blocks"], state["warm_slots"]
        if not (0.0 <= billed_s < math.inf and blocks >= 0):
            raise ValueError("negative or infinite")
        self.budget.set_state(state["budget"])
        self._billed_s, self._blocks = float(billed_s), int(blocks)
        self._warm_slots = {(ACTOR, int(slot)) for slot in warm_slots}

    @staticmethod
    def _blocks_until(seconds: float) -> int:
        return math.ceil(seconds / PROVISIONED_BLOCK_S)


def steady_clock() -> Callable[[], float]:
    """Returns a clock of seconds since 1970 that ignores changes of the system clock."""
    started_s, started_at_s = time.time(), time.monotonic()
    return lambda: started_s + time.monotonic() - started_at_s


class WallClockMeter(Meter):
    """The bill of a deployed learner or a cluster, whose parts are billed by the clock, also between rounds.

    A part costs nothing before it was made. Time before this learner's own start that has not been billed counts at the
    price of the most expensive instance type.
    """

    is_billed = True

    def __init__(
        self,
        model: CostModel,
        budget: Budget,
        *,
        billed_since_s: float,
        learner_from_s: float = 0.0,
        cache_from_s: float = 0.0,
        provisioned_from_s: float = 0.0,
        now: Callable[[], float] = time.time,
        begins: Callable[[float], None] = lambda _: None,
        events: EventSink | None = None,
    ) -> None:
        """Begins to bill the deployment's parts.

        The times come from the guard's notes, so that the learner and the guard bill the same.

        Args:
            billed_since_s: When the deployment began to cost money, in seconds since 1970.
            learner_from_s: Earliest time of its first instance with volume and address, if later.
            cache_from_s: Earliest time of its cache.
            provisioned_from_s: Earliest time of its warm actors.
            now: Returns seconds since 1970.
            begins: Called before a round's first reservation with the round's latest end, in seconds since 1970. It may
                end the run instead.
            events: See `Meter`.
        """
        super().__init__(model, budget, events=events)
        self._begins = begins
        self._billed_since_s, self._billed_until_s, self._now = billed_since_s, billed_since_s, now
        self._learner_from_s, self._cache_from_s, self._provisioned_from_s = (
            learner_from_s,
            cache_from_s,
            provisioned_from_s,
        )
        self._started_s = now()
        self._is_redeployed = False

    @property
    def covered_until_s(self) -> float:
        """Spent and reserved cover all existing parts until this time, in seconds since 1970."""
        return self._billed_until_s + (self._reserved_s if self.budget.is_reserved(_BASE) else 0.0)

    @property
    def burn_usd_per_hour(self) -> float:
        """Hourly cost of all existing parts."""
        return self._model.burn_usd_per_hour

    def open_standing(self, limits: Limits | None = None) -> bool:
        """Opens a round like `Meter.open_standing`, after reporting its latest end."""
        worst_s = super()._round_seconds_max(limits or self._model.limits) + BETWEEN_ROUNDS_S
        self._begins(self._now() + worst_s)
        return super().open_standing(limits)

    def catch_up(self) -> float:
        """Spends idle time since the last bill, even beyond the budget; returns it in dollars."""
        spent_usd, seconds = self.budget.spent_usd, self._unbilled_s
        self.budget.spend(self._standing(seconds).usd)
        self._advance(seconds)
        return self.budget.spent_usd - spent_usd

    def forfeit(self) -> float:
        """Counts reservations as spent, except that parts are billed until now; returns the first in dollars.

        If the deployment is over, the reservation for its parts also counts, because its end is unknown.
        """
        if not self._is_redeployed:
            self.budget.release(_BASE)
        self._is_redeployed = False
        forfeited_usd = super().forfeit()
        self.catch_up()
        return forfeited_usd

    def _ended_s(self, seconds: float) -> float:
        """Returns the time since the last bill, whatever the loop's is."""
        return self._unbilled_s

    def _standing(self, seconds: float) -> Standing:
        learner_s = self._stands_s(seconds, self._learner_from_s)
        before_s = self._started_s - max(self._billed_until_s, self._learner_from_s)
        return self._model.standing(
            learner_s,
            blocks=self._new_blocks(seconds),
            cache_s=self._stands_s(seconds, self._cache_from_s),
            predecessor_s=min(learner_s, max(0.0, before_s)),
        )

    def _stands_s(self, seconds: float, from_s: float) -> float:
        """Returns how many of the next ``seconds`` to bill have a part that exists from ``from_s``."""
        return min(seconds, max(0.0, self._billed_until_s + seconds - from_s))

    def _provisioned_s(self, seconds: float) -> float:
        return self._stands_s(seconds, self._provisioned_from_s)

    def _advance(self, seconds: float) -> None:
        super()._advance(seconds)
        self._billed_until_s += seconds

    def _round_seconds_max(self, limits: Limits) -> float:
        """Adds the time since the last bill, and an allowance for work between two rounds."""
        return self._unbilled_s + super()._round_seconds_max(limits) + BETWEEN_ROUNDS_S

    def _worst_case_usd(self, work: Work, limits: Limits) -> float:
        """Returns the cost until the function's own time-out, whatever the limits are, with a cold start.

        Lambda cannot end an invocation earlier, and it cannot be made to keep an environment warm.
        """
        return self._prices_of(work).worst_case_usd()

    @property
    def _unbilled_s(self) -> float:
        return max(0.0, self._now() - self._billed_until_s)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"billed_until_s": self._billed_until_s}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state; if the deployment is new, the time since the old one's last bill is not billed.

        Neither is that of a run which was on one machine until now.
        """
        billed_until_s = state.get("billed_until_s", 0.0)
        if not 0.0 <= billed_until_s < math.inf:
            raise ValueError("billed_until_s is negative or infinite")
        super().set_state(state)
        self._billed_until_s = max(float(billed_until_s), self._billed_since_s)
        self._is_redeployed = billed_until_s < self._billed_since_s
        if self._is_redeployed:
            # The new deployment's provisioned capacity begins a new block.
            self._billed_s = float(self._blocks * PROVISIONED_BLOCK_S)


def _name(work: Work) -> str:
    return f"{work.role} {work.slot}.{work.attempt}"
