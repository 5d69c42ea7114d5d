"""Estimated cost of a deployment, against plain arithmetic with the list prices of us-east-1."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from stacks.plan import expected_cost

STANDING_USD = 100 * 0.08 / 730 + 0.005 + 360 * 12 * 0.005e-3
"""Dollars per hour of volume, address and uploads."""
WATCHED_USD = (10 * 0.30 + 0.36) / 730 + 0.0006
"""Dollars per hour of metrics, the alarm and images; see tests/money/test_meter.py."""


def experiment(**sections: dict[str, Any]) -> Experiment:
    tree = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}} | sections
    return experiment_from_tree(tree, source="test").resolved(is_deployed=True)


@pytest.mark.parametrize(
    ("types", "dearest_usd", "cheapest_usd", "kind", "cache_usd"),
    [
        (["g4dn.xlarge"], 0.526, 0.526, "none", 0.0),
        (["g4dn.xlarge", "p3.8xlarge", "g6.xlarge"], 12.24, 0.526, "redis", 0.0084),
    ],
)
def test_every_part_costs_and_the_dearest_type_counts_wherever_it_stands(
    types: list[str], dearest_usd: float, cheapest_usd: float, kind: str, cache_usd: float
):
    found = expected_cost(experiment(learner={"instance_types": types}, cache={"kind": kind}))
    around_usd = STANDING_USD + WATCHED_USD
    learner_usd = dearest_usd + around_usd
    assert found.learner_usd_per_hour == pytest.approx(learner_usd)
    assert found.cache_usd_per_hour == pytest.approx(cache_usd)
    assert found.burn_usd_per_hour == pytest.approx(learner_usd + cache_usd)
    assert found.floor_usd_per_hour == pytest.approx(cheapest_usd + around_usd + cache_usd)
    # Three ticks, the learner's grace period and its instance's shutdown take 360 s; the cache may take 900 s more.
    # CloudWatch bills each started hour.
    assert found.tail_usd == pytest.approx(
        (360 * learner_usd + 1260 * cache_usd) / 3600 + WATCHED_USD
    )


@pytest.mark.parametrize(("architecture", "rate"), [("x86_64", 4.1667e-6), ("arm64", 3.3334e-6)])
def test_provisioned_concurrency_is_kept_for_to_the_end_of_its_block(
    architecture: str, rate: float
):
    found = expected_cost(
        experiment(actor={"architecture": architecture, "memory_mib": 512, "provisioned": 8})
    )
    provisioned_usd = 3600 * 8 * 0.5 * rate
    assert found.provisioned_usd_per_hour == pytest.approx(provisioned_usd)
    without = expected_cost(experiment(actor={"architecture": architecture, "memory_mib": 512}))
    assert found.tail_usd - without.tail_usd == pytest.approx(660 * provisioned_usd / 3600)
