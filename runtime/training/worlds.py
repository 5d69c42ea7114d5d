"""Pacing of worlds: in each round, the instances play all their worlds for a fragment, and then train together.

A round is one request to each instance, and one reservation for each. Meanwhile the last round is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Outcome, Work
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.evaluations import Decided
from runtime.training.pacing import Meanwhile, Pacing
from runtime.training.round import Round

if TYPE_CHECKING:
    from runtime.learner.interfaces import Update

CHECKPOINT_EVERY_S = 30.0
"""Seconds between two checkpoints, which hold the states of all worlds. A run that is killed loses at most these."""


class WorldsPacing(Pacing):
    """A pacing whose rounds are batches of worlds, which the updater plays."""

    checkpoint_every_s = CHECKPOINT_EVERY_S

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `Pacing`."""
        roles, money, updater = self._roles, self._money, self._updater
        instances, count = len(updater.counts), sum(updater.counts)
        limits = roles.choose_limits(round_index, instances)
        granted = money.meter.open_round(instances, smallest=instances, limits=limits)
        money.save()
        if not granted:
            money.tell_exhausted(round_index, instances)
            return None
        self._opened_s = self._clock()
        version, decision = updater.policy_version, ScalingDecision(count)
        current = Round(round_index, version, self._opened_s, decision, actor_count=count)
        current.most_reserved_usd = money.meter.reserved_usd
        self._play_and_train(current, meanwhile)
        decided = self._evaluate(current)
        round_s = self._clock() - current.started_s
        self._bill(current)
        steps = roles.progress.env_steps_total
        return current.row(decided, money.meter, env_steps_total=steps, round_s=round_s)

    @property
    def _updater(self) -> Any:
        """The `runtime.gmi.worlds.updater.WorldsUpdater`, as no other one plays."""
        return self._roles.updating.updater

    def _play_and_train(self, current: Round, meanwhile: Meanwhile) -> None:
        roles, updater, training = self._roles, self._updater, current.training
        limit_s = self._money.enforced.collect_s + self._money.enforced.update_s

        def play() -> list[Update]:
            updater.begin_round(current.round_index, progress=roles.progress.fraction)
            meanwhile()
            updates: list[Update] = []
            while not updates:
                updates = updater.poll(limit_s)
            return updates

        roles.updating.learn(play, training, limit_s)
        training.env_steps = updater.steps
        training.count_samples(updater.steps, roles.algorithm)
        roles.progress.env_steps_total += updater.steps
        for found in updater.episodes:
            episodes = {f"episode_{name}": array for name, array in found.items()}
            training.episodes.append(
                {**episodes, "policy_version": np.array(current.policy_version)}
            )
        current.collect_s = max((one["play_s"] for one in updater.answers), default=0.0)
        training.learn_s -= current.collect_s
        for instance in range(len(updater.counts)):
            outcome = Outcome("", "ok", billed_s=current.collect_s)
            self._money.meter.settle(Work(ACTOR, instance), outcome)
            current.tally.billed_s.append(current.collect_s)

    def _evaluate(self, current: Round) -> Decided:
        training = current.training
        decided = self._roles.evaluations.end_round(
            current.round_index,
            self._updater.weights,
            returns=training.episode_returns,
            limit_s=self._money.enforced.update_s,
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
