"""Refuses experiments that cannot work, before anything starts."""

from __future__ import annotations

import dataclasses

from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.trial import TriedEnvironment
from runtime.errors import BudgetTooSmallError, ExperimentError
from runtime.experiment.resolved import ResolvedExperiment, TrialFacts, with_values
from runtime.fleet.sizes import check_sizes
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.model import CostModel
from runtime.money.prices import PriceTable
from runtime.money.work import Limits
from runtime.training.costs import init_s, make_cost_model, make_phase_times
from runtime.training.opening import Backend
from runtime.training.trial import try_experiment


def preflight(
    experiment: ResolvedExperiment, backend: Backend
) -> tuple[TriedEnvironment, ResolvedExperiment]:
    """Refuses experiments that cannot work.

    Args:
        experiment: Resolved.
        backend: Where it is to run. If nobody bills it, it may begin under tightened limits.

    Returns:
        The tried environment, and the experiment with the settings that depend on it.

    Raises:
        ExperimentError: The environment cannot be made or used, the network does not suit it, an instance type has no
            price, or the scaler's recording cannot be used.
        BudgetTooSmallError: The budget cannot hold one round of the fewest actors.
    """
    experiment.scaler.make()
    environment = try_experiment(experiment)
    fitted = fit(experiment, environment)
    at_once = None
    if fitted.learner.has_actors:
        at_once = (fitted.learner.instances_at_once or 1) * fitted.environment.batch
    elif fitted.fleet.kind == "local":
        at_once = fitted.fleet.processes
    model = make_cost_model(
        fitted,
        environment.spaces,
        backend.prices,
        concurrency=at_once,
        is_deployed=backend.is_deployed,
    )
    needed_usd, limits = _smallest_round(fitted, model, is_billed=backend.is_billed)
    if needed_usd > experiment.budget.usd:
        least_usd = needed_usd * (2 if limits.is_tightened else 1)
        until = (
            "a quarter more than the trial makes likely; trials vary by about two"
            if limits.is_tightened
            else "with every part until its own limit"
        )
        actors = experiment.scaler.smallest_round
        work = "a single actor" if fitted.learner.is_external else f"one round of {actors} actors"
        raise BudgetTooSmallError(
            f"budget.usd = {experiment.budget.usd:g} cannot hold {work}, whose worst case is {needed_usd:.6f} USD, "
            f"{until}; allowed: budget.usd from {least_usd:.6f}"
        )
    return environment, fitted


def smallest_budget_usd(
    experiment: ResolvedExperiment,
    environment: TriedEnvironment,
    prices: PriceTable,
    *,
    instance_type: str | None,
    concurrency: int | None = None,
) -> float:
    """Returns what a deployed learner's meter reserves for a first round with the fewest actors.

    Args:
        experiment: Resolved.
        environment: The experiment's, from `try_experiment`.
        prices: The region's.
        instance_type: The learner's; None if it is not an instance.
        concurrency: Actors that run at once; None if all do.

    Raises:
        ExperimentError: The experiment does not suit the environment, or an instance type has no price.
    """
    fitted = fit(experiment, environment)
    model = make_cost_model(
        fitted,
        environment.spaces,
        prices,
        instance_type=instance_type,
        concurrency=concurrency,
        is_deployed=True,
    )
    return _smallest_round(fitted, model, is_billed=True)[0]


def fit(experiment: ResolvedExperiment, environment: TriedEnvironment) -> ResolvedExperiment:
    """Returns the experiment with the settings that depend on its environment.

    Raises:
        ExperimentError: The experiment does not suit the environment.
    """
    fitted = experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)
    fitted = fitted.model_copy(update={"trial": _facts(fitted, environment)})
    is_single = bool(environment.single_because) and fitted.fleet.kind == "local"
    has_several = (
        fitted.fleet.processes > 1 or fitted.evaluation.every_rounds or fitted.learner.has_actors
    )
    if is_single and has_several:
        raise ExperimentError(
            f"{environment.single_because}, while another one exists; allowed: fleet.processes = 1 and "
            "evaluation.every_rounds = 0, or an environment that shares no port or file with others"
        )
    # In lock-step, each process has several environments. That saves time of the policy, and replays.
    gains_nothing = fitted.trial.is_slow and not fitted.trial.replayed_steps(
        fitted.actor.fragment_steps
    )
    if is_single or (gains_nothing and not fitted.learner.has_actors):
        alone = with_values(fitted.environment, vector=1)
        fitted = fitted.model_copy(update={"environment": alone})
    if fitted.learner.has_actors:
        # Their trajectories are not sent anywhere. A lost instance's episodes are played again, unless trainers have
        # them.
        if environment.difference and not fitted.learner.trainers:
            raise ExperimentError(
                f"learner.kind = {fitted.learner.kind}: an instance that replaces another one plays its episodes "
                f"again, and {fitted.environment.id} is not deterministic: {environment.difference}; "
                f"allowed: learner.kind = instance, or "
                "an environment that draws all its random numbers from the seed of reset()"
            )
        return fitted
    check_sizes(
        environment.spaces,
        environment_id=fitted.environment.id,
        fragment_steps=fitted.actor.fragment_steps,
        network=fitted.network.architecture,
        cache_kind=fitted.cache.kind,
    )
    return fitted


def _smallest_round(
    experiment: ResolvedExperiment, model: CostModel, *, is_billed: bool
) -> tuple[float, Limits]:
    """Returns the worst case of a round with the fewest actors, and the tightest limits for the first round."""
    phases = make_phase_times(experiment, model.limits, is_billed=is_billed)
    limits = phases.choices(detects=False, evaluates=experiment.evaluation.every_rounds > 0)[-1]
    meter = Meter(
        model,
        Budget(1e9),
        clock=BillingClock(0.0, now=lambda: 0.0) if is_billed else None,
        init_s=init_s(experiment),
    )
    smallest = 1 if experiment.learner.is_external else experiment.scaler.smallest_round
    meter.open_round(smallest, smallest=smallest, limits=limits)
    return meter.reserved_usd, limits


def _facts(experiment: ResolvedExperiment, environment: TriedEnvironment) -> TrialFacts:
    """Returns what the trial says about speed, and about episodes which cannot be saved.

    Raises:
        ExperimentError: They cannot be continued, and may be longer than a fragment.
    """
    found = TrialFacts(
        step_s=environment.step_s, wait_s=environment.wait_s, make_s=environment.make_s
    )
    if experiment.environment.truncate_at_fragment:
        return found
    try:
        problem = environment.dropped_because(experiment.actor.fragment_steps)
    except UnusableEnvironmentError as error:
        raise ExperimentError(str(error)) from None
    limit = environment.episode_steps_max
    if problem or environment.can_save_episode or limit is None:
        return dataclasses.replace(found, dropped_because=problem)
    return dataclasses.replace(found, replay=environment.replay, replay_steps_max=limit - 1)
