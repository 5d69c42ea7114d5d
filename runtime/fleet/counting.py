"""Fleets with a computed bill: steps of their actors times the seconds per step, and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runtime.cost.rates import WAIT, FunctionTimes, Rates
from runtime.fleet.passing import PassingFleet
from runtime.ports.fleet import Fleet, Invocation, Outcome
from runtime.ports.run import EventSink


class CountingLearner(PassingFleet):
    """A fleet of the learner function that bills each invocation by its samples and its startup.

    If the answer does not state the number of samples, measured seconds count.
    """

    def __init__(self, fleet: Fleet, times: FunctionTimes, *, timeout_s: float) -> None:
        """Bills the invocations of a fleet, which it also closes.

        Args:
            times: Receives the duration of each invocation.
            timeout_s: ``learner.function_timeout_s``.
        """
        super().__init__(fleet)
        self._times, self._timeout_s = times, timeout_s
        self._begun: dict[str, tuple[int, int]] = {}
        self._warm: set[int] = set()

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these; invocations of one slot follow each other, and find the process warm."""
        self._begun |= {
            one.invocation_id: (
                one.event.get("slot", 0),
                len(one.event.get("published_versions", ())),
            )
            for one in invocations
        }
        super().start(invocations)

    def _passed(self, outcome: Outcome) -> Outcome:
        slot, policies = self._begun.pop(outcome.invocation_id, (0, 0))
        if not outcome.was_started:
            return outcome
        times, samples, billed_s = (
            self._times,
            (outcome.response or {}).get("samples", 0),
            outcome.billed_s,
        )
        is_ok = outcome.status == "ok"
        if is_ok and type(samples) is int and samples > 0:
            billed_s = times.function_s(
                samples,
                outcome.cpu_s or outcome.billed_s,
                policies=policies,
                is_first=not outcome.cpu_s,
            )
        billed_s = min(billed_s, self._timeout_s) + (0.0 if slot in self._warm else times.init_s)
        (self._warm.add if is_ok else self._warm.discard)(slot)
        times.took(billed_s, slot)
        return replace(outcome, billed_s=billed_s, init_s=0.0)


class CountingFleet(PassingFleet):
    """A fleet that bills each invocation by its steps; see `runtime.ports.fleet.Fleet`.

    An invocation without a trajectory counts as a whole fragment, a timeout as the time limit. Replayed steps also
    count, although a local process that kept the episode open does not repeat them: in AWS another process would
    probably continue it.
    """

    def __init__(
        self,
        fleet: Fleet,
        rates: Rates,
        *,
        fragment_steps: int,
        timeout_s: float,
        speed: float,
        events: EventSink | None = None,
    ) -> None:
        """Bills the invocations of a fleet, which it also closes.

        Args:
            fragment_steps: ``actor.fragment_steps``.
            timeout_s: Most that is billed.
            speed: Speed of the billed function; see `lambda_speed`. A wait takes the same time at any speed.
            events: Records that waits are unknown.
        """
        super().__init__(fleet)
        self._rates = rates
        self._fragment_steps, self._timeout_s, self._speed = fragment_steps, timeout_s, speed
        self._events = events
        self._begun: dict[str, Invocation] = {}

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these actors."""
        self._begun |= {one.invocation_id: one for one in invocations}
        super().start(invocations)

    def _passed(self, outcome: Outcome) -> Outcome:
        invocation = self._begun.pop(outcome.invocation_id, Invocation(outcome.invocation_id, {}))
        limit_s = min(invocation.timeout_s, self._timeout_s)
        if not outcome.was_started:
            return outcome
        response = outcome.response or {}
        steps = response.get("env_steps", self._fragment_steps)
        if outcome.status == "ok" and outcome.cpu_s:
            played = max(1, steps + response.get("replayed_steps", 0))
            if "step_s" not in self._rates.units:
                # Else the table has them, which waits for nothing, or an earlier fragment.
                if outcome.waited_s:
                    self._rates.known(WAIT, outcome.waited_s, played)
                elif outcome.waited_s is None and self._events is not None:
                    self._events.append("waits_unknown")
            self._rates.known("step_s", outcome.cpu_s, played)
            self._rates.known("init_s", outcome.init_cpu_s, 1)
        units = self._rates.units
        if outcome.status == "timeout" or "step_s" not in units:
            billed_s = limit_s if outcome.status == "timeout" else outcome.billed_s
        else:
            played = steps + invocation.replayed_steps
            work_s = units.get("invocation_s", 0.0) + played * units["step_s"]
            billed_s = work_s / self._speed + played * units.get(WAIT, 0.0)
        return replace(
            outcome,
            billed_s=min(billed_s, limit_s),
            init_s=units["init_s"] / self._speed if "init_s" in units else outcome.init_s,
        )
