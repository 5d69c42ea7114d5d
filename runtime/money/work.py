"""Paid work: its names, its outcomes, its limits, and a round's bill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


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
        error_type: Class name of what the handler raised; empty if it did not raise.
        was_started: False if it was given up before it started. Then it costs nothing.
        billed_s: Billed seconds, without start-up unless it is metered.
        init_s: Billed seconds of a cold start. If metered, this actor's part, contained in ``billed_s``. Otherwise what
            a cold start would take.
        is_metered: Whether the platform reported the billed duration. Otherwise ``billed_s`` is counted here, or an
            upper bound.
        cpu_s, init_cpu_s: Measured CPU seconds of the invocation, if it made no environment and was served alone, and
            of its start-up, if known.
        waited_s: Seconds that its environment waited for something other than a CPU; None if they are unknown.
        growth: Why its process is replaced before its memory is exhausted; empty if it is not.
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
    error_type: str = ""
    growth: str = ""

    @classmethod
    def never_started(cls, invocation_id: str) -> Outcome:
        """Returns the end of an invocation that was given up while it waited for its start."""
        return cls(
            invocation_id,
            "abandoned",
            error="never started before the deadline",
            was_started=False,
        )

    @classmethod
    def abandoned(
        cls,
        invocation_id: str,
        *,
        billed_s: float = 0.0,
        init_s: float = 0.0,
        is_metered: bool = False,
    ) -> Outcome:
        """Returns the end of an invocation that was given up while it ran."""
        return cls(
            invocation_id,
            "abandoned",
            error="still running at the round's deadline",
            billed_s=billed_s,
            init_s=init_s,
            is_metered=is_metered,
        )

    @classmethod
    def timed_out(cls, invocation_id: str, limit_s: float, *, billed_s: float = 0.0) -> Outcome:
        """Returns the end of an invocation that was ended at its time limit."""
        return cls(
            invocation_id, "timeout", error=f"timed out after {limit_s:g} s", billed_s=billed_s
        )


@dataclass(frozen=True)
class Limits:
    """Time limits of a round's phases; the meter reserves this much.

    Attributes:
        actor_s: Limit of an actor, without its start-up.
        collect_s: Limit of all actors of a round together.
        update_s: Limit of detection, update and evaluation together.
        is_tightened: Whether they follow from recent durations, not from the experiment.
    """

    actor_s: float
    collect_s: float
    update_s: float
    is_tightened: bool = False

    @property
    def round_s(self) -> float:
        """Seconds for which standing resources are reserved."""
        return self.collect_s + self.update_s
