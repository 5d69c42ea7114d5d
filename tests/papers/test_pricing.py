"""Prices by counts follow the experiment's own machines."""

from __future__ import annotations

from benchmarks.provenance import ROOT
from papers.pricing import pricing_of
from runtime.experiment.loading import load_experiment
from runtime.scaler.saved_scheduler import Pricing


def priced(*overrides: str) -> Pricing:
    return pricing_of(
        load_experiment(ROOT / "experiments/paper/hopper-minionsrl.yaml", list(overrides))
    )


def test_a_learner_with_a_gpu_is_priced_with_its_speed() -> None:
    with_gpu, with_cpu = priced(), priced("learner.instance_types=[c7i.large]")
    assert with_gpu.sample_s < with_cpu.sample_s / 10
    assert with_gpu.step_s == with_cpu.step_s
    assert with_gpu.learner_usd_per_s > 2 * with_cpu.learner_usd_per_s


def test_only_actors_beyond_the_provisioned_start_cold() -> None:
    assert priced().cold_start_s == 0.0
    assert priced("actor.provisioned=31").cold_start_s > 0.1
