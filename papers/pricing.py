"""Prices rounds afterwards, by their counts: seconds of each unit of work from a dated table, at list prices."""

from __future__ import annotations

from runtime.config.schema import Experiment
from runtime.cost.model import VOLUME_GIB
from runtime.cost.prices import HOURS_PER_MONTH, PRICES
from runtime.cost.rates import instance_speed, lambda_speed, samples_speed, table
from runtime.errors import ExperimentError
from runtime.scaler.pricing import Pricing


def pricing_of(experiment: Experiment) -> Pricing:
    """Returns the pricing of an experiment's rounds, with actors on Lambda, an instance as learner, and no cache.

    Raises:
        ExperimentError: The table does not have its environment with its algorithm.
    """
    resolved = experiment.resolved()
    begins, ends = f"{resolved.environment.id} ", f" {resolved.algorithm.kind}"
    names = [one for one in table()["workloads"] if one.startswith(begins) and one.endswith(ends)]
    if not names:
        known = sorted({one.split()[0] for one in table()["workloads"]})
        raise ExperimentError(
            f"environment.id = {resolved.environment.id!r} with algorithm.kind ={ends} has no measured units of work; "
            f"allowed: {' | '.join(known)}"
        )
    units, actor = table()["workloads"][names[0]], resolved.actor
    instance_type = resolved.learner.instance_types[0]
    actor_speed, learner_speed = lambda_speed(actor.memory_mib), instance_speed(instance_type)
    network = "conv" if " conv " in names[0] else "mlp"
    memory_gib_usd = PRICES.functions[actor.architecture].on_demand_usd
    hourly_usd = PRICES.instance_hour_usd[instance_type] + PRICES.public_ipv4_hour_usd
    hourly_usd += PRICES.volume_gib_month_usd * VOLUME_GIB / HOURS_PER_MONTH
    return Pricing(
        invocation_s=units["invocation_s"] / actor_speed,
        step_s=units["step_s"] / actor_speed,
        cold_start_s=units["init_s"] / actor_speed,
        gradient_step_s=units["gradient_step_s"] / learner_speed,
        sample_s=units["sample_s"] / samples_speed(instance_type, network=network),
        evaluated_step_s=units["evaluated_step_s"] / learner_speed,
        invocation_usd=PRICES.request_usd,
        actor_usd_per_s=actor.memory_mib / 1024 * memory_gib_usd,
        learner_usd_per_s=hourly_usd / 3600,
    )
