"""An experiment's prices and its rounds' durations, the basis of reservations and bills."""

from __future__ import annotations

from typing import Any

from lambda_actor.spaces import Spaces
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.sizes import traffic_bytes_max
from runtime.money.limits import PhaseSeconds, PhaseTimes
from runtime.money.model import INIT_SECONDS_MAX, CostModel, vcpu_share
from runtime.money.prices import PriceTable
from runtime.money.work import Limits

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
    fleet: Any = experiment.fleet
    return CostModel(
        experiment,
        prices,
        traffic_bytes_max=traffic_bytes_max(
            spaces,
            fragment_steps=experiment.actor.fragment_steps,
            network=experiment.network.architecture,
        ),
        instance_type=instance_type,
        waves=experiment.scaler.batches(concurrency),
        is_deployed=is_deployed,
        nodes=(fleet.nodes or nodes) if fleet.kind == "ray" else 0,
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
    batches = experiment.scaler.batches(at_once)
    return PhaseSeconds(
        actor_s=fragment_s / vcpu_share(experiment.actor.memory_mib),
        collect_s=experiment.trial.make_s + batches * fragment_s,
        sample_s=step_s,
        detect_s=experiment.detector.lanczos_steps * experiment.detector.subset_size * step_s,
        evaluate_s=2 * experiment.evaluation.episodes * _EPISODE_STEPS * step_s,
    )


def init_s(experiment: ResolvedExperiment) -> float:
    """Returns the longest start-up of an actor that is reserved where nothing is billed, by the trial's."""
    return min(INIT_SECONDS_MAX, experiment.trial.make_s / vcpu_share(experiment.actor.memory_mib))
