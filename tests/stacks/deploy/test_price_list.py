"""Prices that boto3 reads from a local Price List API with decoys next to every product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from runtime.aws.asking import AccountError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.prices import (
    PRICES,
    LambdaPrices,
    PriceTable,
    elsewhere,
    prices_from_json,
    prices_to_json,
)
from stacks.deploy.price_list import PRICE_LIST_REGION, choose_prices
from tests.simulators.aws.price_list import PriceList, catalogue

TODAY = "2026-11-21"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[PriceList]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    with PriceList(
        [*catalogue("eu-central-1"), *catalogue("us-east-1"), *catalogue("sa-east-1")]
    ) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", server.url)
        yield server


def asked(
    region: str = "us-east-1", *, kind: str = "g5.xlarge", architecture: str = "x86_64"
) -> tuple[PriceTable, str]:
    tree = {
        "environment": {"id": "Hopper-v5"},
        "budget": {"usd": 1.0},
        "learner": {"instance_types": [kind]},
        "actor": {"architecture": architecture},
    }
    experiment = experiment_from_tree(tree, source="test").resolved(is_deployed=True)
    client = boto3.Session().client("pricing", region_name=PRICE_LIST_REGION)
    try:
        return choose_prices(client, experiment, elsewhere(PRICES, region), TODAY)
    finally:
        client.close()


def test_every_price_is_that_of_its_one_product(api: PriceList) -> None:
    prices, remark = asked()
    assert (remark, prices.as_of, prices.source) == ("", TODAY, "the Price List API")
    assert prices.functions == {
        "x86_64": LambdaPrices(
            on_demand_usd=0.0000166667,
            provisioned_capacity_usd=0.0000041667,
            provisioned_duration_usd=0.0000097222,
        )
    }
    assert prices.instance_hour_usd == {"g5.xlarge": 1.006}
    for name in (
        "request_usd",
        "serverless_cache_gib_hour_usd",
        "serverless_cache_gib_min",
        "serverless_cache_ecpu_usd",
        "volume_gib_month_usd",
        "public_ipv4_hour_usd",
        "put_usd",
    ):
        assert getattr(prices, name) == getattr(PRICES, name)
    assert prices.skus["BoxUsage:g5.xlarge"] == "G5.XLARGE-0-US-EAST-1 since 2026-11-01"
    assert len(prices.skus) == 10
    assert prices_from_json(prices_to_json(prices)) == prices


@pytest.mark.parametrize("region", ["eu-central-1", "sa-east-1"])
def test_another_region_has_its_own_prefix_and_prices(api: PriceList, region: str) -> None:
    prices, remark = asked(region)
    assert (remark, prices.region) == ("", region)
    assert prices.skus["BoxUsage:g5.xlarge"].startswith(f"G5.XLARGE-0-{region.upper()} since")


def test_arm_has_its_own_prices(api: PriceList) -> None:
    prices, remark = asked(architecture="arm64")
    assert (remark, list(prices.functions)) == ("", ["arm64"])
    assert prices.functions["arm64"].on_demand_usd == pytest.approx(0.0000133334)


def change_tier(**values: Any) -> Callable[[PriceList], Any]:
    return lambda api: api.tiers("G5.XLARGE-0-US-EAST-1")[0].update(values)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda api: api.again("G5.XLARGE-0-US-EAST-1", "ANOTHER"),
        lambda api: api.products.remove(api.named("G5.XLARGE-0-US-EAST-1")),
        lambda api: api.named("G5.XLARGE-0-US-EAST-1")["terms"].clear(),
        change_tier(pricePerUnit={"CNY": "7.0"}),
        change_tier(pricePerUnit={"USD": "0.0000000000"}),
        change_tier(pricePerUnit={"USD": "nan"}),
        change_tier(pricePerUnit={"USD": "1.0", "CNY": "7.0"}),
        change_tier(pricePerUnit={"USD": "2000000"}),
        change_tier(unit="1M Requests"),
        change_tier(unit="Million hours"),
        change_tier(beginRange="1"),
        change_tier(beginRange=None),
    ],
)
def test_without_exactly_one_price_all_are_the_dated_tables_or_there_are_none(
    api: PriceList, break_it: Callable[[PriceList], Any]
) -> None:
    break_it(api)
    prices, remark = asked()
    assert prices == PRICES
    assert remark.startswith(
        "the Price List API does not have exactly one price of AmazonEC2 BoxUsage:g5.xlarge in us-east-1; the prices "
        "are from the dated table"
    )


def test_an_instance_type_without_any_price_is_refused(api: PriceList) -> None:
    with pytest.raises(
        AccountError, match=r"no price of r7i\.large\. Nothing was .* --prices FILE"
    ):
        asked(kind="r7i.large")


def test_an_api_that_does_not_answer_is_said(
    api: PriceList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", "http://127.0.0.1:9")
    prices, remark = asked()
    assert prices == PRICES
    assert "cannot be asked" in remark and "\n" not in remark
