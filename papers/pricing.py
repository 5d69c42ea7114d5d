"""Prices rounds afterwards, by their counts: seconds of each unit of work from a dated table, at list prices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import has_gpu
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment
from runtime.money.model import vcpu_share, volume_gib
from runtime.money.prices import HOURS_PER_MONTH, PRICES
from runtime.scaler.saved_scheduler import Pricing

TABLE_PATH = Path(__file__).with_name("units.json")
"""CPU seconds of each unit of work, by workload, on one core that counts as a vCPU of a c7i; benchmarks/work_rates.py
writes it."""
GPU_WORK = ROOT / "benchmarks" / "results" / "gpu" / "work.json"
"""Seconds of the learner's units on an H100 and on its host's CPU. The papers' V100 is slower."""
LAMBDA_SPEED = 0.68
"""Speed of one vCPU of AWS Lambda, relative to the machine of the table. **Modelled**: published comparisons of x86_64
and arm64 there differ by -16 to +19 %, so they have the same speed here."""


@cache
def table() -> Mapping[str, Any]:
    """Returns the table: ``as_of``, ``commit``, ``machine``, and by workload the seconds of each unit."""
    found: Mapping[str, Any] = json.loads(TABLE_PATH.read_bytes())
    return found


def lambda_speed(memory_mib: int) -> float:
    """Returns the speed of a single-threaded function of this memory, relative to the machine of the table."""
    return vcpu_share(memory_mib) * LAMBDA_SPEED


def units_of(resolved: ResolvedExperiment) -> Mapping[str, float]:
    """Returns the seconds of each unit of an experiment's work.

    Raises:
        ExperimentError: The table does not have its environment with its algorithm.
    """
    begins, ends = f"{resolved.environment.id} ", f" {resolved.algorithm.kind}"
    names = [one for one in table()["workloads"] if one.startswith(begins) and one.endswith(ends)]
    if not names:
        known = sorted({one.split()[0] for one in table()["workloads"]})
        raise ExperimentError(
            f"environment.id = {resolved.environment.id!r} with algorithm.kind ={ends} has no measured units of work; "
            f"allowed: {' | '.join(known)}"
        )
    units: Mapping[str, float] = table()["workloads"][names[0]]
    return units


def on_gpu(units: Mapping[str, float]) -> Mapping[str, float]:
    """Returns these units with the learner's on a GPU: divided by an H100's advantage over its host's CPU."""
    points = json.loads(GPU_WORK.read_bytes())["points"]
    measured = {point["point"]["device"]: point for point in points}
    learner = ("gradient_step_s", "sample_s", "product_sample_s")
    cpu, cuda = measured["cpu"], measured["cuda"]
    return {**units, **{name: units[name] * cuda[name] / cpu[name] for name in learner}}


def pricing_of(experiment: Experiment) -> Pricing:
    """Returns the pricing of an experiment's rounds, with actors on Lambda, its first type of learner, and no cache.

    Actors start cold unless enough for the largest round are provisioned.

    Raises:
        ExperimentError: The table does not have its environment with its algorithm.
    """
    resolved = experiment.resolved()
    units, actor = units_of(resolved), resolved.actor
    instance_type = resolved.learner.instance_types[0]
    if has_gpu(instance_type):
        units = on_gpu(units)
    is_warm = actor.provisioned >= resolved.scaler.actors_max
    actor_speed = lambda_speed(actor.memory_mib)
    memory_gib_usd = PRICES.functions[actor.architecture].on_demand_usd
    hourly_usd = PRICES.instance_hour_usd[instance_type] + PRICES.public_ipv4_hour_usd
    hourly_usd += (
        PRICES.volume_gib_month_usd * volume_gib(resolved.learner.instance_types) / HOURS_PER_MONTH
    )
    return Pricing(
        invocation_s=units["invocation_s"] / actor_speed,
        step_s=units["step_s"] / actor_speed,
        cold_start_s=0.0 if is_warm else units["init_s"] / actor_speed,
        gradient_step_s=units["gradient_step_s"],
        sample_s=units["sample_s"],
        evaluated_step_s=units["evaluated_step_s"],
        invocation_usd=PRICES.request_usd,
        actor_usd_per_s=actor.memory_mib / 1024 * memory_gib_usd,
        learner_usd_per_s=hourly_usd / 3600,
    )
