"""What a deployment can cost, for people, and whether its budget holds that."""

from __future__ import annotations

import math

from runtime.aws.asking import AccountError
from runtime.aws.clients import Client
from runtime.aws.ledger import find_ledger
from runtime.errors import EnvironmentNotHereError
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB, as_learner_functions
from runtime.show.terminal import spent_of
from runtime.times import INTERVAL_S, LATE_S, LEG_S, MISSING_S, STARTING_S
from runtime.training.preflight import smallest_budget_usd
from runtime.training.trial import try_experiment
from stacks.plan import LAUNCHES_MAX, Plan, check_round


def limits(plan: Plan) -> dict[str, str]:
    """Returns the deployment's parts, limits and costs, each with a label."""
    experiment, estimate, start = plan.experiment, plan.estimate, plan.start
    usd, tail_usd = experiment.budget.usd, estimate.tail_usd
    phases = ", ".join(f"{phase.name} {_minutes(phase.expected_s)}" for phase in start.phases)
    return {
        "deployment": f"{plan.stack_name}, run {plan.run}",
        "learner": _learner(plan),
        "actors": _actors(plan),
        "at once": _at_once(plan),
        "cache": experiment.cache.kind,
        "budget": f"${usd:g} in all, as long as the guard runs: ${usd - tail_usd:.2f} to spend, of which about "
        f"${start.counted_usd:.2f} go into the start; ${tail_usd:.4f} are kept for taking everything down",
        "an hour": _an_hour(plan),
        "start": f"about {_minutes(start.expected_s)} minutes with images that are pushed: {phases}; it costs "
        f"${start.usd:.3f}, counted as ${start.counted_usd:.3f}: to whole minutes",
        "guard": f"looks every {INTERVAL_S:.0f} s, and deletes the stack when the run has ended, when its money is "
        f"spent, when nothing was heard of it for {LATE_S / 60:.0f} minutes ({STARTING_S / 60:.0f} while it starts, "
        f"{MISSING_S / 60:.0f} from the beginning), or after budget.lifetime_hours = "
        f"{experiment.budget.lifetime_hours:g}",
        "no guard": _without_guard(plan),
        "after that": "results, $0.023 a GB and month, and images, $0.10 a GB and month, until you delete them",
        "shared": "network, guard and results bucket: about $0.60 a month",
        "prices": f"{plan.prices.source} for {plan.prices.region}, {plan.prices.as_of}; AWS' bill is what counts",
    }


def _an_hour(plan: Plan) -> str:
    estimate = plan.estimate
    parts = {
        "learner": estimate.learner_usd_per_hour,
        "cache": estimate.cache_usd_per_hour,
        "warm actors": estimate.provisioned_usd_per_hour,
    }
    prices = [f"{name} ${usd:.3f}" for name, usd in parts.items() if usd > 0.0]
    text = f"${estimate.burn_usd_per_hour:.3f} at most for running resources: {', '.join(prices)}"
    if plan.has_function:
        work_usd = _work_usd_per_hour(plan)
        text += f"; functions at work come on top, all of them all the time ${work_usd:.2f}"
    return text


def _without_guard(plan: Plan) -> str:
    """Describes what it can cost if AWS' own services must end it."""
    estimate, hours = plan.estimate, plan.lifetime_hours
    ended = [] if plan.is_external else ["the learner" if plan.has_instance else "the rounds"]
    ended += ["warm actors"] if plan.provisioned_actors else []
    text = f"if the guard fails too, AWS ends {' and '.join(ended) or 'nothing'} after {hours:.1f} hours: "
    work_usd = _work_usd_per_hour(plan) * hours if plan.has_function else 0.0
    text += f"at most ${estimate.burn_usd_per_hour * hours + work_usd:.2f}"
    if work_usd:
        text += f", of which ${work_usd:.2f} are for functions at work"
    if plan.experiment.has_elasticache:
        text += f"; then ${estimate.cache_usd_per_hour:.3f} an hour for the cache until you stop it"
    return text


def _learner(plan: Plan) -> str:
    learner = plan.experiment.learner
    if plan.is_external:
        return "none: your own process, with nitro_rl.ActorPool and fleet.kind = lambda"
    if plan.has_instance:
        market = learner.market.replace("_", " ")
        return (
            f"one of {', '.join(learner.instance_types)}, {market}; at most {LAUNCHES_MAX} launches"
        )
    function = as_learner_functions(learner)
    return (
        f"no instance: up to {learner.functions_at_once} functions of {function.function_memory_mib} MiB make updates, "
        f"{function.function_timeout_s} s each; a coordinator of {COORDINATOR_MEMORY_MIB} MiB runs the rounds, in legs "
        f"of up to {LEG_S / 60:.0f} minutes, each of which is tried {LAUNCHES_MAX} times"
    )


def _actors(plan: Plan) -> str:
    actor, fleet = plan.experiment.actor, plan.experiment.fleet
    most = f"at most {plan.experiment.scaler.most_actors}, {actor.timeout_s} s each"
    if not plan.has_function:
        return f"{most}, {fleet.processes} at once: processes of the learner"
    return f"{most}, of {actor.memory_mib} MiB; {plan.provisioned_actors} kept warm"


def _at_once(plan: Plan) -> str:
    """Describes what the account's concurrency allows; empty if it is unknown, or actors are no functions."""
    if not plan.has_function or plan.actor_concurrency is None:
        return ""
    return (
        f"{plan.actor_concurrency} functions; {plan.reserved_actors or 'none'} reserved for actors, "
        f"{plan.provisioned_actors} actors kept warm; waves per round: {plan.waves}"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _hour_usd(plan: Plan, functions: int, memory_mib: int) -> float:
    """Returns the on-demand price of an hour of functions that run without a pause."""
    second_usd = plan.prices.functions[plan.experiment.actor.architecture].on_demand_usd
    return 3600 * functions * memory_mib / 1024 * second_usd


def _work_usd_per_hour(plan: Plan) -> float:
    """Returns the cost of an hour in which all actors and learner functions are at work."""
    if not plan.has_function:
        return 0.0
    experiment = plan.experiment
    usd = _hour_usd(plan, experiment.scaler.most_actors, experiment.actor.memory_mib)
    if experiment.learner.functions_at_once:
        memory_mib = as_learner_functions(experiment.learner).function_memory_mib
        usd += _hour_usd(plan, experiment.learner.functions_at_once, memory_mib)
    return usd


def check_budget(plan: Plan) -> tuple[float, str]:
    """Checks that the budget holds a start, a round and the teardown.

    The round has at most the actors that the account can run at once, if that number is known.

    Returns:
        Their worst-case cost in dollars, and a remark for people: how to learn the likely cost, or why that is not
        known.

    Raises:
        AccountError: The budget is too small.
    """
    check_round(plan.experiment, waves=plan.waves)
    needed_usd = plan.start.counted_usd + plan.estimate.tail_usd
    remark = "`python -m runtime plan FILE` measures what a run is likely to cost"
    what = f"a start of {_minutes(plan.start.expected_s)} minutes and the teardown"
    try:
        environment = try_experiment(plan.experiment)
    except EnvironmentNotHereError as error:
        if plan.experiment.environment.package is None:
            raise
        remark = (
            f"not known, and the budget is not checked against a round's worst case: {error}. "
            "With the environment's package in a folder, PYTHONPATH=FOLDER lets it be checked"
        )
    else:
        types = plan.experiment.learner.instance_types if plan.has_instance else (None,)
        needed_usd += max(
            smallest_budget_usd(
                plan.experiment,
                environment,
                plan.prices,
                instance_type=name,
                concurrency=plan.concurrency,
            )
            for name in types
        )
        what += f", with one round's worst case in {plan.waves} waves"
    if plan.experiment.budget.usd < needed_usd:
        raise AccountError(
            f"budget.usd = {plan.experiment.budget.usd:g} cannot hold {what}; allowed: budget.usd from "
            f"{_rounded_up(needed_usd)}"
        )
    return needed_usd, remark


def check_spent(plan: Plan, needed_usd: float, client: Client) -> str:
    """Checks that the budget holds another deployment of the run. Describes what earlier ones have cost, if any.

    Args:
        plan: The deployment.
        needed_usd: The least that it needs.
        client: Makes the client of a service.

    Raises:
        AccountError: The budget is too small.
        LedgerError: The ledger cannot be read.
    """
    ledger = find_ledger(client)
    entry = ledger.get(plan.key) if ledger else None
    if entry is None:
        return ""
    if entry.is_open:
        raise AccountError(
            f"the guard still settles the last deployment of run {plan.key}. Nothing was deployed; allowed: in a "
            "minute, or with --run NAME, which begins another run"
        )
    spent_usd, budget_usd = entry.promised_usd, plan.experiment.budget.usd
    if budget_usd - spent_usd < needed_usd:
        raise AccountError(
            f"run {plan.key} has spent ${spent_usd:.2f} of budget.usd = {budget_usd:g}, and another deployment needs "
            f"${_rounded_up(needed_usd)} at least: its start, a round's worst case, and taking it down. Nothing was "
            f"deployed; allowed: budget.usd from {_rounded_up(spent_usd + needed_usd)}"
        )
    return f"{spent_of(spent_usd, budget_usd)} by earlier deployments of run {plan.key}"


def _rounded_up(usd: float) -> str:
    """Rounds up to whole cents, so that the amount in a message is accepted."""
    return f"{math.ceil(usd * 100) / 100:.2f}"
