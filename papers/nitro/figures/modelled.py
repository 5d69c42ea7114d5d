"""Shared code of the figures on time: measured seconds of units of work, divided by published speeds."""

from __future__ import annotations

from functools import cache

from benchmarks.provenance import ROOT
from runtime.config.loading import load_experiment
from runtime.config.resolved import FittedExperiment
from runtime.cost.rates import ModelledTimes, Rates, tabled
from runtime.planning.prediction import FAN_OUT_S as FAN_OUT_S
from runtime.planning.prediction import INVOKE_S as INVOKE_S
from runtime.training.preflight import preflight

EXPERIMENTS = {
    name: f"experiments/paper/{name}-ppo.yaml"
    for name in ("hopper", "walker2d", "humanoid", "space_invaders", "qbert", "gravitar")
}


@cache
def fitted(file: str) -> FittedExperiment:
    """Returns the experiment with its environment's spaces."""
    return preflight(load_experiment(ROOT / file).resolved())[1]


def times(experiment: FittedExperiment, instance_type: str) -> ModelledTimes:
    """Returns the seconds of its work with that learner, from the table of measured units."""
    return ModelledTimes(Rates("table", tabled(experiment), None), experiment, instance_type)
