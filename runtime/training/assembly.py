"""Puts the loop of an experiment together from its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.ports.learning import Updater
from runtime.ports.money import CostMeter, WorkTimes
from runtime.ports.run import EventSink, PolicyEvaluator
from runtime.ports.sampling import Sampler
from runtime.ports.scaling import Detector, Scaler
from runtime.sampling.episodes import OpenEpisodes
from runtime.sampling.failures import Failures
from runtime.training.asynchronous import AsynchronousPacing
from runtime.training.books import Books
from runtime.training.costs import make_phase_times
from runtime.training.detection import Detection
from runtime.training.evaluations import Evaluations
from runtime.training.loop import RoundLoop
from runtime.training.pacings import Pacing, Parts, RoundSettings, Scaling
from runtime.training.progress import Progress
from runtime.training.saving import SaveRound, Saving
from runtime.training.synchronous import SynchronousPacing
from runtime.training.updating import TimeLimit, Updating

PACINGS: Mapping[str, Callable[[Parts], Pacing]] = {
    "synchronous": SynchronousPacing,
    "asynchronous": AsynchronousPacing,
}
"""By ``algorithm.rounds``."""


def make_round_loop(
    experiment: FittedExperiment,
    *,
    updater: Updater,
    detector: Detector,
    scaler: Scaler,
    sampler: Sampler,
    meter: CostMeter,
    evaluator: PolicyEvaluator,
    events: EventSink,
    event_fields: Mapping[str, Any],
    spaces: Spaces,
    save_ledger: Callable[[], None],
    save_round: SaveRound,
    shield: Callable[[], AbstractContextManager[None]] = nullcontext,
    time_limit: TimeLimit = lambda seconds, what: nullcontext(),
    clock: Callable[[], float] = time.monotonic,
    times: WorkTimes | None = None,
) -> RoundLoop:
    """Makes the loop, with the pacing that ``algorithm.rounds`` names.

    Args:
        meter: The one that the sampler settles with.
        evaluator: Evaluates policies beside the training.
        events: Records what happens besides finished rounds.
        event_fields: Fields of every actor's event that no round changes.
        spaces: Of the environment.
        save_ledger: Puts the meter's state on disk.
        save_round: Puts a finished round's row, checkpoint and policy on disk.
        shield: Entered around writes that an interrupt must not cut in two.
        time_limit: Entered with seconds and a name around what is reserved for that long; raises `BudgetError`.
        clock: Monotonic seconds.
        times: For how long the learner's work counts in the bill; None = as long as was measured.
    """
    times = times or WorkTimes()
    algorithm, fleet, learner = experiment.algorithm, experiment.fleet, experiment.learner
    episodes, books = OpenEpisodes(events), Books(meter, events, save_ledger)
    progress = Progress(experiment.stop, experiment.actor.fragment_steps)
    parts = Parts(
        settings=RoundSettings(
            seed=experiment.seed, fragment_event=event_fields, spaces=spaces,
            attempts=fleet.attempts, quorum=fleet.quorum,
            round_deadline_s=fleet.round_deadline_s, most_actors=scaler.actors_max,
            round_steps=algorithm.round_steps, fragment_steps=experiment.actor.fragment_steps,
            staleness_max=algorithm.staleness_max, minibatch_steps=algorithm.chosen.minibatch_steps,
            subset_size=experiment.detector.subset_size),
        progress=progress, sampler=sampler,
        updating=Updating(
            updater, episodes, progress, spaces, fragment_steps=experiment.actor.fragment_steps,
            clip_rewards=experiment.environment.clip_rewards,
            replays_episodes=bool(experiment.environment.replay),
            settings_key=f"algorithm.{algorithm.chosen_key}", clock=clock, time_limit=time_limit,
            times=times),
        detection=Detection(
            detector, updater, signals=scaler.signals, timeout_s=learner.update_timeout_s,
            time_limit=time_limit, times=times, clock=clock),
        scaling=Scaling(scaler, books, target_return=experiment.stop.target_return,
                        budget_usd=experiment.budget.usd),
        evaluations=Evaluations(evaluator, progress, every_rounds=experiment.evaluation.every_rounds,
                                has_whole_episodes=not experiment.environment.truncate_at_fragment, times=times),
        saving=Saving(save_round, shield), episodes=episodes,
        failures=Failures(events, episodes, attempts=fleet.attempts, failures_max=fleet.failures_max),
        books=books, events=events, clock=clock, times=times,
        phases=make_phase_times(experiment, meter.limits, times))
    return RoundLoop(parts, PACINGS[algorithm.rounds](parts), shield=shield)
