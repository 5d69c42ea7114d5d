"""Pacing of worlds: in each round, the instances play all their worlds for a fragment, and then train together.

A round is one request to each instance, and one reservation for each. Meanwhile the last round is written.
"""

from __future__ import annotations

import numpy as np

from runtime.gmi.worlds.updater import WorldsUpdater
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Outcome, Work
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.evaluations import Decided
from runtime.training.pacing import Meanwhile, Pacing
from runtime.training.roles import Roles
from runtime.training.round import Round

CHECKPOINT_EVERY_S = 30.0
"""Seconds between two checkpoints, which hold the states of all worlds. A run that is killed loses at most these."""


class WorldsPacing(Pacing):
    """A pacing whose rounds are batches of worlds, which the updater plays."""

    checkpoint_every_s = CHECKPOINT_EVERY_S

    def __init__(self, roles: Roles, updater: WorldsUpdater) -> None:
        """Takes those who do the work, and the updater among them."""
        super().__init__(roles)
        self._updater = updater
        self._instances = range(len(updater.plan.counts))

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `Pacing`."""
        roles, money = self._roles, self._money
        instances, worlds = len(self._instances), sum(self._updater.plan.counts)
        limits = roles.choose_limits(round_index, instances)
        granted = money.meter.open_round(instances, smallest=instances, limits=limits)
        money.save()
        if not granted:
            money.tell_exhausted(round_index, worlds)
            return None
        self._opened_s = self._clock()
        current = Round(
            round_index,
            self._updater.policy_version,
            self._opened_s,
            ScalingDecision(worlds),
            actor_count=worlds,
            most_reserved_usd=money.meter.reserved_usd,
        )
        self._play_and_train(current, meanwhile)
        return self._end(current, self._evaluate(current))

    def _play_and_train(self, current: Round, meanwhile: Meanwhile) -> None:
        roles, training = self._roles, current.training
        with roles.updating.limited(training, self._money.deadline_s + self._money.update_s):
            self._updater.begin_round(current.round_index, progress=roles.progress.fraction)
            meanwhile()
            played = self._updater.end_round()
        current.collect_s = played.play_s
        training.learn_s -= played.play_s
        roles.updating.record(played.update, played.env_steps, training)
        training.env_steps = played.env_steps
        roles.progress.env_steps_total += played.env_steps
        version = np.array(current.policy_version)
        training.add_episodes(
            {**episodes, "policy_version": version} for episodes in played.episodes
        )
        for instance in self._instances:
            outcome = Outcome("", "ok", billed_s=played.play_s)
            self._money.meter.settle(Work(ACTOR, instance), outcome)
            current.tally.billed_s.append(played.play_s)

    def _evaluate(self, current: Round) -> Decided:
        training = current.training
        decided = self._roles.evaluations.end_round(
            current.round_index,
            self._updater.weights,
            returns=training.episode_returns,
            limit_s=self._money.update_s,
        )
        self._money.phases.saw(
            PhaseSeconds(
                actor_s=current.collect_s,
                collect_s=current.collect_s,
                sample_s=training.learn_s / training.env_steps,
                evaluate_s=decided.seconds,
            )
        )
        return decided
