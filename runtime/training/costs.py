"""The money of rounds: an experiment's prices and durations, limits that the budget holds, and unfinished rounds."""

from __future__ import annotations

import math
from collections.abc import Callable

from lambda_actor.spaces import Spaces
from runtime.errors import BudgetError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.settings import RaySettings
from runtime.fleet.sizes import traffic_bytes_max
from runtime.money.limits import PhaseSeconds, PhaseTimes
from runtime.money.meter import Meter
from runtime.money.model import INIT_SECONDS_MAX, CostModel, vcpu_share
from runtime.money.prices import PriceTable
from runtime.money.work import Limits
from runtime.records.observers import EventSink

_EPISODE_STEPS = 1000


def make_cost_model(
    experiment: ResolvedExperiment,
    spaces: Spaces,
    prices: PriceTable,
    *,
    instance_type: str | None = None,
    concurrency: int | None = None,
    nodes: int = 1,
    is_deployed: bool = False,
) -> CostModel:
    """Makes the cost model of an experiment.

    Args:
        experiment: Fitted to its environment.
        spaces: The environment's.
        prices: The region's.
        instance_type: The learner's; None for the first of ``learner.instance_types``.
        concurrency: Actors that run at once, on which a round's deadline depends; None if all do.
        nodes: Nodes of a Ray cluster, if actors run there.
        is_deployed: Whether it is a deployment in AWS.

    Raises:
        ExperimentError: The instance type has no price.
    """
    fleet = experiment.fleet
    return CostModel(
        experiment,
        prices,
        traffic_bytes_max=traffic_bytes_max(
            spaces,
            fragment_steps=experiment.actor.fragment_steps,
            network=experiment.network.architecture,
        ),
        instance_type=instance_type,
        waves=experiment.scaler.waves(concurrency),
        is_deployed=is_deployed,
        nodes=(fleet.nodes or nodes) if isinstance(fleet, RaySettings) else 0,
    )


def make_phase_times(
    experiment: ResolvedExperiment, configured: Limits, *, is_billed: bool
) -> PhaseTimes:
    """Makes the record of how long a round's phases take.

    Args:
        experiment: Fitted to its environment.
        configured: Its limits.
        is_billed: Whether someone bills the work. If not, a first round may begin under limits by the trial's seconds;
            a pool's calls always have the experiment's.
    """
    is_tried = experiment.trial.step_s and not (is_billed or experiment.learner.is_external)
    return PhaseTimes(
        configured,
        samples_max=experiment.scaler.most_actors * experiment.actor.fragment_steps,
        expected=expected_seconds(experiment) if is_tried else PhaseSeconds(),
        growth=1.0 + experiment.trial.replay_steps_max / experiment.actor.fragment_steps,
    )


def expected_seconds(experiment: ResolvedExperiment) -> PhaseSeconds:
    """Returns how long the phases of a first round may take, by the trial's seconds of a step and of a start.

    A sample of an update, a Hessian-vector product of one, and an evaluated step count as a step each. For the shipped
    experiments, that is one to ten times what they take.
    """
    step_s, fragment_steps = experiment.trial.step_s, experiment.actor.fragment_steps
    fragment_s = fragment_steps * step_s
    at_once = experiment.learner.instances_at_once or experiment.fleet.processes
    waves = experiment.scaler.waves(at_once)
    return PhaseSeconds(
        actor_s=fragment_s / vcpu_share(experiment.actor.memory_mib),
        collect_s=experiment.trial.make_s + waves * fragment_s,
        sample_s=step_s,
        detect_s=experiment.detector.lanczos_steps * experiment.detector.subset_size * step_s,
        evaluate_s=2 * experiment.evaluation.episodes * _EPISODE_STEPS * step_s,
    )


def init_s(experiment: ResolvedExperiment) -> float:
    """Returns the longest start-up of an actor that is reserved where nothing is billed, by the trial's."""
    return min(INIT_SECONDS_MAX, experiment.trial.make_s / vcpu_share(experiment.actor.memory_mib))


class RoundMoney:
    """The meter, the ledger on disk that follows it, and how long the phases of the last rounds took.

    Attributes:
        meter: Reserves and settles.
        events: Records reservations that do not fit.
        save: Puts the meter's state on disk.
        phases: Determine the limits under which the budget holds a round.
        limits: Those of the current attempt at a round, which are reserved.
        deadline_s: Longest wait for a round's actors.
    """

    def __init__(
        self,
        experiment: ResolvedExperiment,
        meter: Meter,
        events: EventSink,
        save: Callable[[], None],
        *,
        concurrency: int,
    ) -> None:
        """Takes the meter in its current state.

        Args:
            concurrency: Actors that run at once; further ones are queued.
        """
        self.meter = meter
        self.events = events
        self.save = save
        self.phases = make_phase_times(experiment, meter.limits, is_billed=meter.is_billed)
        self._concurrency = concurrency
        self._actors_max = experiment.scaler.most_actors
        self.limits = meter.limits
        self.deadline_s: float = experiment.fleet.round_deadline_s * self._waves(self._actors_max)
        if meter.is_billed:
            self.deadline_s = min(self.deadline_s, meter.limits.collect_s)

    @property
    def update_s(self) -> float:
        """Longest time for a round's update, detection and evaluation."""
        return self.meter.limits.update_s

    @property
    def promised_usd(self) -> float:
        """Dollars spent and reserved."""
        return self.meter.spent_usd + self.meter.reserved_usd

    def choices(self, *, detects: bool = False, evaluates: bool = False) -> list[Limits]:
        """Returns limits by which a round may be reserved: the experiment's, then tightened ones.

        Tightened limits only reserve, and never end anything. So where someone bills the time, there are none.

        Args:
            detects: Whether the detector is to run.
            evaluates: Whether an evaluation may use time of the round.
        """
        if self.meter.is_billed:
            return [self.meter.limits]
        return self.phases.choices(detects=detects, evaluates=evaluates)

    def choose_limits(self, round_index: int, actors: int, **phases: bool) -> Limits:
        """Returns the first limits with which the budget holds a round of this many actors, or else the last ones.

        Args:
            phases: See `choices`.
        """
        choices = self.choices(**phases)
        fitting = (limits for limits in choices if self.meter.fits(actors, limits))
        chosen = next(fitting, choices[-1])
        if chosen.is_tightened and not self.limits.is_tightened:
            self.events.append(
                "limits_tightened",
                round_index=round_index,
                actor_s=chosen.actor_s,
                collect_s=chosen.collect_s,
                update_s=chosen.update_s,
                free_usd=self.meter.free_usd,
            )
        self.limits = chosen
        return chosen

    def saw_collection(self, seconds: float, actors: int) -> None:
        """Records the wait for this number of actors, scaled to the most actors; some are queued."""
        scale = self._waves(self._actors_max) / self._waves(actors)
        self.phases.saw(PhaseSeconds(collect_s=seconds * scale))

    def _waves(self, actors: int) -> int:
        return math.ceil(actors / self._concurrency)

    def tell_exhausted(self, round_index: int, wanted: int) -> None:
        """Records that the budget does not hold a round, and the number of actors wanted for it."""
        self.events.append(
            "budget_exhausted", round_index=round_index, wanted=wanted, free_usd=self.meter.free_usd
        )

    def tell_shrunk(self, round_index: int, wanted: int, granted: int) -> None:
        """Records that the budget holds fewer actors than are wanted."""
        self.events.append(
            "round_shrunk",
            round_index=round_index,
            wanted=wanted,
            granted=granted,
            free_usd=self.meter.free_usd,
        )

    def close_standing(self, seconds: float) -> None:
        """Settles running resources after ``seconds``, at most what was reserved for them."""
        try:
            self.meter.close_round(seconds)
        except BudgetError as error:
            self.events.append("reservation_exceeded", error=str(error))

    def forfeit(self, ran_s: float) -> None:
        """Counts all remaining reservations as spent, as far as their work can have run in these seconds."""
        self.meter.forfeit(ran_s)
        self.save()
