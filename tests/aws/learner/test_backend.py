"""The opening bill of a deployed learner."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.aws.learner.backend import AwsBackend
from runtime.aws.learner.deployment import Deployment
from runtime.aws.ledger import Entry
from runtime.errors import ExperimentError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.meter import Meter
from runtime.money.prices import PRICES
from tests.aws.learner.test_deployment import WHOLE
from tests.learner.learning import VECTORS

NOW_S = 1.8e9


def meter_and_clock(deployment: Deployment, entry: Entry) -> tuple[Meter, SimpleNamespace]:
    """Returns the meter of a learner that starts at `NOW_S`, with a budget of $1000, and its clock."""
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1000.0},
        "actor": {"provisioned": 2},
        "learner": {"instance_types": ["c7i.large"]},
        "cache": {"kind": "redis"},
    }
    fitted = (
        experiment_from_tree(tree, source="test")
        .resolved(is_deployed=True)
        .fitted(VECTORS, preprocessing="none")
    )
    clock = SimpleNamespace(now_s=NOW_S)
    backend: Any = SimpleNamespace(
        _deployment=deployment,
        prices=PRICES,
        _now=lambda: clock.now_s,
        _round_begins=lambda ends_at_s: None,
    )
    run: Any = SimpleNamespace(experiment=fitted, spaces=VECTORS, events=None)
    return AwsBackend._meter(backend, run, entry, concurrency=10), clock


def spent_usd_in_an_hour(deployment: Deployment, entry: Entry) -> float:
    """Returns what that meter has billed an hour later, by the same clock."""
    meter, clock = meter_and_clock(deployment, entry)
    clock.now_s += 3600.0
    return meter.catch_up()


@pytest.mark.parametrize("ahead_s", [60.0, 3500.0])
@pytest.mark.parametrize(
    "what", ["billed_since", "began_at_s", "learner_from_s", "cache_from_s", "provisioned_from_s"]
)
def test_what_another_clock_says_of_later_is_billed_from_the_learners_start_on(
    what: str, ahead_s: float
) -> None:
    """A learner's clock may be slow. Existing resources still cost money."""
    told = Deployment.from_environment(WHOLE)
    assert told is not None
    deployment = replace(
        told, instance_type="c7i.large", billed_since=str(int(NOW_S)), tail_usd="0"
    )
    entry = Entry("walker/one", stack=deployment.stack)
    honest_usd = spent_usd_in_an_hour(deployment, entry)
    assert honest_usd > PRICES.instance_hour_usd["c7i.large"]
    if what == "billed_since":
        deployment = replace(deployment, billed_since=str(int(NOW_S + ahead_s)))
    else:
        entry = replace(entry, **{what: NOW_S + ahead_s})
    assert spent_usd_in_an_hour(deployment, entry) == pytest.approx(honest_usd)


def test_the_money_for_the_teardown_is_not_the_learners() -> None:
    deployment = replace(
        Deployment.from_environment(WHOLE), instance_type="c7i.large", tail_usd="400"
    )
    meter, _ = meter_and_clock(deployment, Entry("walker/one", stack=deployment.stack))
    assert meter.budget.free_usd == pytest.approx(600.0)


def test_prices_of_another_region_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with pytest.raises(ExperimentError, match=r"^region 'eu-west-1': its prices are not known"):
        AwsBackend(deployment=Deployment.from_environment(WHOLE), prices=PRICES)
