"""Assembles an experiment's loop from its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.detector.interfaces import Detector
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures, Patience
from runtime.fleet.flight import Flight
from runtime.fleet.interfaces import Cache, Fleet
from runtime.learner.interfaces import Updater
from runtime.training.asynchronous.pacing import AsynchronousPacing
from runtime.training.books import Books
from runtime.training.callbacks import Callbacks
from runtime.training.costs import make_phase_times
from runtime.training.detection import Detection
from runtime.training.evaluations import Evaluations
from runtime.training.interfaces import PolicyEvaluator
from runtime.training.loop import RoundLoop
from runtime.training.pacings import Pacing, Parts, Scaling
from runtime.training.progress import Progress
from runtime.training.saving import Saving
from runtime.training.synchronous import SynchronousPacing
from runtime.training.timing import Timing
from runtime.training.updating import Updating

PACINGS: Mapping[str, Callable[[Parts], Pacing]] = {
    "synchronous": SynchronousPacing,
    "asynchronous": AsynchronousPacing,
}
"""Pacings, by ``algorithm.rounds``."""


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """The objects that do the work of an experiment's rounds.

    Attributes:
        evaluator: Evaluates policies in parallel with training.
        actor_event: Fields of actors' events that are the same in all rounds.
        spaces: The environment's.
        patience: Tolerance for failing actors.
    """

    updater: Updater
    detector: Detector
    fleet: Fleet
    cache: Cache
    evaluator: PolicyEvaluator
    actor_event: Mapping[str, Any]
    spaces: Spaces
    patience: Patience = Patience()


def make_round_loop(
    experiment: ResolvedExperiment,
    equipment: Equipment,
    *,
    books: Books,
    saving: Saving,
    timing: Timing,
    callbacks: Callbacks,
) -> RoundLoop:
    """Makes the loop, with the pacing that ``algorithm.rounds`` names.

    Args:
        equipment: Does the work.
        books: Books of the meter that settles actors.
        saving: Puts finished rounds on disk.
        timing: Clock and limits.
        callbacks: The user's.
    """
    updater, scaler, environment = (
        equipment.updater,
        experiment.scaler.make(),
        experiment.environment,
    )
    episodes, progress = (
        OpenEpisodes(books.events),
        Progress(experiment.stop, experiment.actor.fragment_steps),
    )
    failures = Failures(books.events, episodes, equipment.patience)
    parts = Parts(
        experiment=experiment,
        actor_event=equipment.actor_event,
        spaces=equipment.spaces,
        progress=progress,
        flight=Flight(
            equipment.fleet,
            equipment.cache,
            books.meter,
            failures,
            books.events,
            books.save,
            clock=timing.clock,
        ),
        updating=Updating(updater, episodes, progress, equipment.spaces, experiment, timing),
        detection=Detection(
            equipment.detector,
            updater,
            signals=scaler.signals,
            timeout_s=experiment.learner.update_timeout_s,
            timing=timing,
        ),
        scaling=Scaling(scaler, books, experiment),
        evaluations=Evaluations(
            equipment.evaluator,
            progress,
            every_rounds=experiment.evaluation.every_rounds,
            has_whole_episodes=not environment.truncate_at_fragment,
        ),
        saving=saving,
        callbacks=callbacks,
        episodes=episodes,
        failures=failures,
        books=books,
        events=books.events,
        clock=timing.clock,
        phases=make_phase_times(experiment, books.meter.limits, is_billed=books.meter.is_billed),
    )
    return RoundLoop(parts, PACINGS[experiment.algorithm.rounds or "synchronous"](parts))
