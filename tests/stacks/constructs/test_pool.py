"""A deployment without a learner: actors, and the role for the pool of a user's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.money.prices import POOL_USD_PER_HOUR
from stacks.deploy.costs import limits
from stacks.plan import Plan
from tests.stacks.conftest import Assembly, experiment_text, flat


def plan_of(tmp_path, context=None, **changes) -> Plan:
    path = tmp_path / "x.yaml"
    path.write_text(
        experiment_text(**{"cache__kind": "none", "learner": {"kind": "external"}, **changes})
    )
    return Plan.from_context({"experiment": str(path), **(context or {})}.get)


def test_the_outputs_tell_what_a_pool_needs(variant: Callable[[str], Assembly]) -> None:
    made = variant("pool")
    outputs = {name: flat(one["Value"]) for name, one in made.template()["Outputs"].items()}
    assert outputs["PoolFiles"] == f"s3://{made.learner_key()}"
    assert sorted(path.name for path in made.learner_asset().iterdir()) == [
        "experiment.yaml",
        "prices.json",
    ]
    assert outputs["LedgerTable"] == made.exported("NitroGuard", "LedgerTable")
    assert (outputs["WarmActors"], outputs["ActorFunction"]) == (
        "2",
        f"<{made.name('AWS::Lambda::Alias')}>",
    )


def test_without_a_word_about_a_cache_there_is_none(tmp_path) -> None:
    (path := tmp_path / "x.yaml").write_text(
        "environment: {id: Pendulum-v1}\nlearner: {kind: external}\nbudget: {usd: 1}\n"
    )
    plan = Plan.from_context({"experiment": str(path)}.get)
    assert (plan.experiment.cache.kind, plan.experiment.fleet.kind) == ("none", "lambda")


def test_no_limit_of_a_coordinator_counts(tmp_path) -> None:
    plan = plan_of(
        tmp_path, budget__lifetime_hours=200, fleet__round_deadline_s=3600, actor__provisioned=2
    )
    assert (plan.has_instance, plan.has_coordinator, plan.provisioned_actors) == (False, False, 2)
    assert replace(plan, actor_concurrency=7).concurrency == 7


def test_what_it_costs_is_told_without_a_learner(tmp_path) -> None:
    plan = plan_of(tmp_path, actor__provisioned=2, budget__usd=1.0)
    told = limits(plan)
    assert told["learner"].startswith("none: your own process")
    assert told["actors"].endswith("2 kept warm")
    expected = plan.estimate
    assert expected.burn_usd_per_hour == pytest.approx(
        POOL_USD_PER_HOUR + expected.provisioned_usd_per_hour
    )
    assert expected.provisioned_usd_per_hour > 10 * POOL_USD_PER_HOUR
    assert plan.start.phases[0].expected_s == pytest.approx(210.0)
    assert replace(plan, actor_concurrency=100).start.phases[0].expected_s == pytest.approx(90.0)
