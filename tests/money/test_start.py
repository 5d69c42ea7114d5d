"""The phases of a start, added up: a few minutes, and no charge for a resource before it exists."""

from __future__ import annotations

from dataclasses import fields

import pytest

from runtime.money.estimate import Estimate, start

RATES = {"learner_usd_per_hour": 1.0, "cache_usd_per_hour": 0.1, "provisioned_usd_per_hour": 0.01}
EXPECTED = Estimate(**{field.name: RATES.get(field.name, 0.0) for field in fields(Estimate)})


def test_the_instance_costs_from_its_launch_on() -> None:
    made = start(EXPECTED, has_cache=True, is_warm=True, has_gpu=False)
    cache, *others = made.phases
    # The function is created before the version that is kept warm.
    assert cache.usd == pytest.approx((0.11 * cache.expected_s - 0.01 * 90) / 3600)
    assert sum(phase.usd for phase in others) == pytest.approx(
        1.11 * (made.expected_s - cache.expected_s) / 3600
    )
    assert made.usd == pytest.approx(sum(phase.usd for phase in made.phases))
    assert made.counted_usd == pytest.approx(made.usd + 1.11 / 60), "the guard looks once a minute"
    assert made.instance_limit_s == sum(phase.limit_s for phase in others)
