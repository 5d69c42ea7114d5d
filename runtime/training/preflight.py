"""What is refused before anything starts."""

from __future__ import annotations

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from runtime.config.resolved import FittedExperiment, ResolvedExperiment
from runtime.cost.budget import Budget
from runtime.cost.meter import Meter
from runtime.cost.prices import PRICES, PriceTable
from runtime.cost.sizes import check_sizes
from runtime.errors import EnvironmentNotHereError, ExperimentError
from runtime.training.costs import make_cost_model


def preflight(
    experiment: ResolvedExperiment, prices: PriceTable = PRICES
) -> tuple[ActorEnvironment, FittedExperiment]:
    """Refuses what cannot work.

    Args:
        experiment: Resolved.
        prices: What the worst case of a round is counted with.

    Returns:
        The environment that evaluation uses, and the experiment with what follows from it filled in.

    Raises:
        ExperimentError: The environment cannot be made or used, the network does not suit it, an instance type has no
            price, or the budget cannot hold one round of the fewest actors.
    """
    environment, fitted = _fit(experiment)
    needed_usd = _round_usd(fitted, environment, prices)
    if needed_usd > experiment.budget.usd:
        raise ExperimentError(
            f"budget.usd = {experiment.budget.usd:g} cannot hold one round of {experiment.scaler.smallest_round} "
            f"actors, whose worst case is {needed_usd:.6f} USD: every actor until actor.timeout_s = "
            f"{experiment.actor.timeout_s} s, the learner until fleet.round_deadline_s + learner.update_timeout_s"
            + (f", the first five minutes of actor.provisioned = {experiment.actor.provisioned} actors"
               if experiment.actor.provisioned else "")
            + f"; allowed: budget.usd from {needed_usd:.6f}")
    return environment, fitted


def smallest_budget_usd(
    experiment: ResolvedExperiment, prices: PriceTable, *, instance_type: str, waves: int = 1
) -> float:
    """Returns what the worst case of a round of the fewest actors costs, with such a learner.

    Args:
        experiment: Resolved.
        prices: Of the region.
        instance_type: The learner's.
        waves: How many times longer a round's deadline is, because not all its actors can run at once.

    Raises:
        EnvironmentNotHereError: The environment cannot be made.
        ExperimentError: It cannot be used, or an instance type has no price.
    """
    environment, fitted = _fit(experiment)
    return _round_usd(fitted, environment, prices, instance_type, waves)


def _fit(experiment: ResolvedExperiment) -> tuple[ActorEnvironment, FittedExperiment]:
    try:
        environment = make_environment(experiment.environment.id, experiment.environment.preprocessing)
    except ActorError as error:
        raise EnvironmentNotHereError(str(error)) from None
    fitted = experiment.fitted(environment.spaces, preprocessing=environment.preprocessing)
    _check_open_episodes(fitted, environment)
    check_sizes(environment.spaces, environment_id=fitted.environment.id,
                fragment_steps=fitted.actor.fragment_steps, network=fitted.network.kind,
                cache_kind=fitted.cache.kind)
    return environment, fitted


def _round_usd(
    experiment: FittedExperiment, environment: ActorEnvironment, prices: PriceTable, instance_type: str | None = None,
    waves: int = 1,
) -> float:
    smallest = experiment.scaler.smallest_round
    model = make_cost_model(experiment, environment.spaces, prices, instance_type=instance_type, waves=waves)
    meter = Meter(model, Budget(1e9))
    meter.open_round(smallest, smallest=smallest)
    return meter.reserved_usd


def _check_open_episodes(experiment: FittedExperiment, environment: ActorEnvironment) -> None:
    steps, limit = experiment.actor.fragment_steps, environment.episode_steps_max
    is_shorter = limit is None or steps < limit
    if is_shorter and not environment.can_save_episode and not experiment.environment.truncate_at_fragment:
        raise ExperimentError(
            f"actor.fragment_steps = {steps} is shorter than an episode of {experiment.environment.id} can be "
            f"({f'{limit} steps' if limit else 'no limit'}), and its episodes cannot be continued by a later actor: "
            f"{environment.cannot_save_reason}. Give the environment get_state() and set_state(state), or set "
            "environment.truncate_at_fragment: true if nothing that comes later in an episode matters")
