"""Synchronous pacing: all actors of a round roll out the same policy, and the update waits for them.

A round, numbered from 1:

    1. the policy's weights are published, and the minimum number of actors starts at once;
    2. meanwhile the last round's row and checkpoint are written, and
    3. the detector measures that policy's signals for the scaler on the last round's samples;
    4. the scaler decides the number of actors, and the missing ones start with the same weights;
    5. the round waits for all, aggregates their trajectories in slot order, and updates the policy.

Before a round starts, its worst case is reserved in the budget.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math

from runtime.errors import ActorsKeepFailingError
from runtime.fleet.actors import ActorSpec
from runtime.fleet.flight import Group
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Work
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.evaluations import Decided
from runtime.training.pacing import REJECTED_ROUNDS_MAX, Meanwhile, Pacing
from runtime.training.round import Round


class SynchronousPacing(Pacing):
    """A pacing whose actors start and end with their round."""

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `Pacing`."""
        updater = self._roles.updating.updater
        first_wave = ScalingDecision(self._roles.scaling.scaler.first_wave(round_index))
        current = Round(round_index, updater.policy_version, self._clock(), first_wave)
        weights = updater.weights()
        for attempt in range(REJECTED_ROUNDS_MAX):
            group = self._collect(current, f"r{round_index}t{attempt}", weights, meanwhile)
            if group is None:
                return None
            if self._has_quorum(group):
                return self._end(current, self._train(current, group))
            self._reject(current, actor_count=group.started, actors_returned=len(group.came))
        raise ActorsKeepFailingError(
            f"round {round_index} missed its quorum {REJECTED_ROUNDS_MAX} times in a row: "
            f"{self._roles.rollouts.failures.patience.quorum:.0%} of its actors must return; the last actor's error: ",
            current.tally.last_error,
        )

    def _collect(
        self, current: Round, name: str, weights: bytes, meanwhile: Meanwhile
    ) -> Group | None:
        """Rolls an attempt's actors out; None if the budget does not hold even the smallest round."""
        roles, money, failures = self._roles, self._money, self._roles.rollouts.failures
        wanted = roles.progress.room_for(current.decision.actor_count)
        limits = roles.choose_limits(current.round_index)
        granted = money.meter.open_round(
            wanted, smallest=roles.scaling.scaler.actors_min, limits=limits
        )
        money.save()
        if granted == 0:
            money.tell_exhausted(current.round_index, wanted)
            return None
        self._opened_s = self._clock()
        until_s = self._opened_s + money.deadline_s
        group = Group(name, failures.patience.attempts, until_s, current.tally)
        spec = roles.rollouts.spec(
            current.round_index,
            current.policy_version,
            weights,
            timeout_s=money.meter.limits.actor_s,
            raised=current.attempts_raised,
        )
        failures.begin()
        self._flight.publish(current.policy_version, weights)
        self._start(group, spec, range(granted))
        meanwhile()
        self._decide(current)
        room = roles.progress.room_for(current.decision.actor_count)
        self._boost(group, spec, range(granted, room))
        self._tell_what_is_missing(current, room, group.started)
        current.most_reserved_usd = max(current.most_reserved_usd, money.meter.reserved_usd)
        self._flight.finish(until_s, "the round's deadline passed")
        money.save()
        collect_s = self._clock() - self._opened_s
        money.phases.saw(PhaseSeconds(actor_s=group.longest_s))
        money.saw_collection(collect_s, group.started)
        current.attempts_raised += failures.has_raising_slot
        current.collect_s += collect_s
        current.actor_count = group.started
        return group

    def _start(self, group: Group, spec: ActorSpec, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        works = [Work(ACTOR, slot) for slot in slots]
        waiting = self._roles.rollouts.episodes.waiting[slots.start : slots.stop]
        self._flight.start(group, spec, works, slots, waiting)

    def _decide(self, current: Round) -> None:
        """Asks the scaler, with signals measured now; a later attempt keeps the first one's decision."""
        if current.is_decided:
            return
        current.measured = self._roles.detection.measure()
        if current.measured:
            self._money.phases.saw(PhaseSeconds(detect_s=current.measured.seconds))
        current.decision = self._roles.scaling.decide(current.round_index, current.measured)
        current.is_decided = True

    def _boost(self, group: Group, spec: ActorSpec, slots: range) -> None:
        """Starts the actors that the scaler has added, as far as the budget holds them."""
        granted = self._money.meter.reserve([Work(ACTOR, slot) for slot in slots])
        if granted:
            self._money.save()
            self._start(group, spec, slots[:granted])

    def _tell_what_is_missing(self, current: Round, room: int, granted: int) -> None:
        if room < current.decision.actor_count:
            self._money.events.append(
                "round_fitted",
                round_index=current.round_index,
                wanted=current.decision.actor_count,
                granted=room,
                reason="stop.max_steps has room for no more fragments",
            )
        if granted < room:
            self._money.tell_shrunk(current.round_index, room, granted)

    def _has_quorum(self, group: Group) -> bool:
        # Slightly less than the product, which rounding can make slightly too large.
        quorum = self._roles.rollouts.failures.patience.quorum
        return len(group.came) >= max(1, math.ceil(quorum * group.started - 1e-9))

    def _train(self, current: Round, group: Group) -> Decided:
        """Updates the policy, and collects a due evaluation, in what detection has left of the reserved time."""
        roles, training = self._roles, current.training
        detect_s = current.measured.seconds if current.measured else 0.0
        limit_s = self._money.update_s - detect_s
        in_slot_order = sorted(group.came, key=lambda came: int(came["slot"]))
        update = roles.updating.train(in_slot_order, training, limit_s)
        roles.detection.add(update.samples)
        roles.detection.end_round()
        decided = roles.evaluations.end_round(
            current.round_index,
            roles.updating.updater.weights,
            returns=training.episode_returns,
            limit_s=limit_s - training.learn_s,
        )
        self._money.phases.saw(
            PhaseSeconds(sample_s=training.learn_s / training.env_steps, evaluate_s=decided.seconds)
        )
        return decided
