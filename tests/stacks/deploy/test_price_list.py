"""Prices that boto3 reads from a local Price List API with decoys next to every product."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from runtime.experiment.loading import experiment_from_tree
from runtime.money.prices import (
    PRICES,
    LambdaPrices,
    PriceTable,
    elsewhere,
    prices_from_json,
    prices_to_json,
)
from stacks.deploy.price_list import (
    PRICE_LIST_REGION,
    PriceListError,
    PricesUnreachableError,
    choose_prices,
)
from tests.helpers import cost_model
from tests.simulators.aws.price_list import PriceList, catalogue

TODAY = "2026-11-21"
FEES = {
    "request_usd": "REQUEST-X86",
    "instance_hour_usd.g5.xlarge": "G5.XLARGE-0",
    "functions.x86_64.on_demand_usd": "DURATION-X86",
    "functions.x86_64.provisioned_capacity_usd": "CAPACITY-X86",
    "functions.x86_64.provisioned_duration_usd": "PROVISIONED-X86",
    "serverless_cache_gib_hour_usd": "DATA-VALKEY",
    "serverless_cache_ecpu_usd": "ECPU-VALKEY",
    "volume_gib_month_usd": "GP3",
    "public_ipv4_hour_usd": "IPV4",
    "put_usd": "PUT",
}
"""Maps each price to the start of its SKU in us-east-1."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceList]:
    with PriceList(
        [*catalogue("eu-central-1"), *catalogue("us-east-1"), *catalogue("sa-east-1")]
    ) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", server.url)
        yield server


def fetch(region: str = "us-east-1", **of: Any) -> PriceTable:
    """Prices that come only from the API."""
    prices, remark = asked(region, **of)
    assert remark == ""
    return prices


def asked(
    region: str = "us-east-1",
    *,
    architecture: str = "x86_64",
    types: tuple[str, ...] = ("g5.xlarge",),
    other: PriceTable | None = None,
) -> tuple[PriceTable, str]:
    client = boto3.Session().client("pricing", region_name=PRICE_LIST_REGION)
    try:
        return choose_prices(client, architecture, types, other or elsewhere(PRICES, region), TODAY)
    finally:
        client.close()


def refusal() -> str:
    """Returns the remark on the first price taken from the dated table instead."""
    prices, remark = asked()
    name, _, text = remark.partition(" is from the dated table, 2026-11-20: ")
    assert name not in prices.skus
    assert prices.source.startswith(f"the Price List API and, for {name}")
    return text


# Prices found


def test_every_price_is_that_of_its_one_product(api: PriceList) -> None:
    prices = fetch()
    assert prices == PriceTable(
        region="us-east-1",
        as_of=TODAY,
        source="the Price List API",
        functions={
            "x86_64": LambdaPrices(
                on_demand_usd=0.0000166667,
                provisioned_capacity_usd=0.0000041667,
                provisioned_duration_usd=0.0000097222,
            )
        },
        request_usd=0.0000002,
        instance_hour_usd={"g5.xlarge": 1.006},
        serverless_cache_gib_hour_usd=0.084,
        serverless_cache_gib_min=0.1,
        serverless_cache_ecpu_usd=0.0000000023,
        volume_gib_month_usd=0.08,
        public_ipv4_hour_usd=0.005,
        put_usd=0.000005,
        skus={name: f"{sku}-US-EAST-1 since 2026-11-01" for name, sku in FEES.items()},
    )
    assert prices_from_json(prices_to_json(prices)) == prices


def test_they_are_near_the_dated_tables(api: PriceList) -> None:
    fetched, dated = vars(fetch()), vars(PRICES)
    for name in (
        "request_usd",
        "serverless_cache_gib_hour_usd",
        "serverless_cache_gib_min",
        "serverless_cache_ecpu_usd",
        "volume_gib_month_usd",
        "public_ipv4_hour_usd",
        "put_usd",
    ):
        assert fetched[name] == pytest.approx(dated[name]), name
    assert vars(fetched["functions"]["x86_64"]) == pytest.approx(
        vars(dated["functions"]["x86_64"]), rel=1e-4
    )
    assert fetched["instance_hour_usd"]["g5.xlarge"] == dated["instance_hour_usd"]["g5.xlarge"]


def test_an_arm_function_has_its_own_prices(api: PriceList) -> None:
    types = ("c5.9xlarge", "g4dn.xlarge")
    prices = fetch(architecture="arm64", types=types)
    assert prices.functions == {
        "arm64": LambdaPrices(
            on_demand_usd=0.0000133334,
            provisioned_capacity_usd=0.0000033334,
            provisioned_duration_usd=0.0000077778,
        )
    }
    assert prices.instance_hour_usd == {"c5.9xlarge": 1.53, "g4dn.xlarge": 0.526}
    assert prices.skus["request_usd"] == "REQUEST-ARM-US-EAST-1 since 2026-11-01"
    arm = experiment_from_tree(
        {
            "environment": {"id": "Hopper-v5"},
            "budget": {"usd": 1.0},
            "actor": {"architecture": "arm64"},
            "learner": {"instance_types": types},
        },
        source="test",
    )
    assert cost_model(arm.resolved(), prices).learner_usd_per_hour[0] == pytest.approx(1.53)


@pytest.mark.parametrize("region", ["eu-central-1", "sa-east-1"])
def test_another_region_has_its_own_prices(api: PriceList, region: str) -> None:
    (tier,) = api.tiers(f"IPV4-{region.upper()}")
    tier["pricePerUnit"]["USD"] = "0.0070000000"
    prices, remark = asked(region)
    assert (prices.region, prices.public_ipv4_hour_usd, remark) == (region, 0.007, "")
    assert all(sku.endswith(f"-{region.upper()} since 2026-11-01") for sku in prices.skus.values())


@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_all_pages_are_read(api: PriceList, page_size: int) -> None:
    api.page_size = page_size
    assert fetch().skus["serverless_cache_ecpu_usd"] == "ECPU-VALKEY-US-EAST-1 since 2026-11-01"
    assert any("NextToken" in request for request in api.requests) == (page_size < 100)


# Exactly one product


@pytest.mark.parametrize("sku", FEES.values())
def test_a_product_that_is_not_there_is_told(api: PriceList, sku: str) -> None:
    missing = api.named(f"{sku}-US-EAST-1")
    api.products.remove(missing)
    text = refusal()
    service, usage = (
        missing["serviceCode"],
        missing["product"]["attributes"]["usagetype"].removeprefix("USE1-"),
    )
    assert text.startswith(
        f"the Price List API has no products, not one, for {service} {usage} in us-east-1 "
        "(regionCode = us-east-1, "
    )


@pytest.mark.parametrize("sku", FEES.values())
def test_two_products_are_named(api: PriceList, sku: str) -> None:
    api.again(f"{sku}-US-EAST-1", "ANOTHER", operation="Something")
    text = refusal()
    assert text.startswith("the Price List API has 2 products, not one, for ")
    assert text.endswith(f"): ANOTHER, {sku}-US-EAST-1")


@pytest.mark.parametrize("sku", ["DATA-VALKEY", "IPV4", "G5.XLARGE-0", "DURATION-X86"])
def test_only_the_price_that_cannot_be_told_is_the_dated_tables(api: PriceList, sku: str) -> None:
    whole = vars(fetch())
    api.products.remove(api.named(f"{sku}-US-EAST-1"))
    prices, remark = asked()
    (name,) = whole["skus"].keys() - prices.skus.keys()
    assert remark.startswith(f"{name} is from the dated table, 2026-11-20: ")
    for field in (
        "request_usd",
        "instance_hour_usd",
        "serverless_cache_gib_hour_usd",
        "public_ipv4_hour_usd",
    ):
        assert vars(prices)[field] == whole[field], field
    assert vars(prices.functions["x86_64"]) == pytest.approx(
        vars(PRICES.functions["x86_64"]), rel=1e-4
    )
    assert prices_from_json(prices_to_json(prices)) == prices


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "sa-east-1"])
def test_a_price_that_no_table_has_is_refused(api: PriceList, region: str) -> None:
    with pytest.raises(PriceListError, match="has no products, not one, for"):
        asked(region, types=("g6e.2xlarge",))


@pytest.mark.parametrize(
    ("region", "times"), [("us-east-1", 1.0), ("eu-central-1", 2.0), ("sa-east-1", 2.0)]
)
def test_elsewhere_what_the_api_does_not_tell_is_the_dated_tables_price_times_two(
    api: PriceList, region: str, times: float
) -> None:
    api.products = [
        one
        for one in api.products
        if one["product"]["sku"]
        not in (
            f"IPV4-{region.upper()}",
            f"G5.XLARGE-0-{region.upper()}",
            f"DURATION-X86-{region.upper()}",
        )
    ]
    prices, remark = asked(region)
    assert prices.public_ipv4_hour_usd == times * PRICES.public_ipv4_hour_usd
    assert prices.instance_hour_usd == {"g5.xlarge": times * PRICES.instance_hour_usd["g5.xlarge"]}
    assert (
        prices.functions["x86_64"].on_demand_usd == times * PRICES.functions["x86_64"].on_demand_usd
    )
    # Every remark concerns that region.
    assert prices.volume_gib_month_usd == 0.08
    table = "the dated table" if times == 1 else "the dated table of us-east-1 times 2"
    assert remark.count(f" is from {table}, 2026-11-20: the Price List API has no products") == 3
    assert prices.source.endswith(f", {table} of 2026-11-20")
    assert prices_from_json(prices_to_json(prices)) == prices


def test_a_file_of_the_users_comes_before_the_dated_table(api: PriceList) -> None:
    api.products.remove(api.named("IPV4-SA-EAST-1"))
    own = PRICES.model_copy(
        update={"region": "sa-east-1", "source": "my file", "public_ipv4_hour_usd": 0.006}
    )
    prices, remark = asked("sa-east-1", other=own)
    assert prices.public_ipv4_hour_usd == 0.006
    assert remark.startswith("public_ipv4_hour_usd is from my file, 2026-11-20: ")


def test_only_prices_are_multiplied() -> None:
    dear = elsewhere(PRICES, "sa-east-1")
    assert (dear.region, dear.as_of, dear.serverless_cache_gib_min) == (
        "sa-east-1",
        PRICES.as_of,
        0.1,
    )
    assert dear.put_usd == 2 * PRICES.put_usd
    assert (
        dear.functions["arm64"].provisioned_duration_usd
        == 2 * PRICES.functions["arm64"].provisioned_duration_usd
    )
    assert prices_from_json(prices_to_json(dear)) == dear


def test_what_the_refusal_tells(api: PriceList) -> None:
    api.products.remove(api.named("PUT-US-EAST-1"))
    assert refusal() == (
        "the Price List API has no products, not one, for AmazonS3 Requests-Tier1 in us-east-1 "
        "(regionCode = us-east-1, group = S3-API-Tier1)"
    )


@pytest.mark.parametrize(
    "usage",
    [
        "XZ-Requests-Tier1",
        "TS-Requests-Tier1",
        "Outposts-Requests-Tier1",
        "Requests-Tier1-More",
        "use1-Requests-Tier1",
        "USE1-XZ-Requests-Tier1",
    ],
)
def test_what_only_ends_like_a_usage_type_is_another(api: PriceList, usage: str) -> None:
    api.again("PUT-US-EAST-1", "ANOTHER", usagetype=usage)
    assert fetch().skus["put_usd"].startswith("PUT-US-EAST-1 ")


@pytest.mark.parametrize("prefix", ["", "USE1-", "us-east-1-", "EU-"])
def test_a_regions_prefix_may_stand_before_a_usage_type(api: PriceList, prefix: str) -> None:
    api.named("PUT-US-EAST-1")["product"]["attributes"]["usagetype"] = f"{prefix}Requests-Tier1"
    assert fetch().put_usd == 0.000005


# Exactly one price


def test_the_price_is_that_of_the_first_unit_wherever_it_stands(api: PriceList) -> None:
    (term,) = api.named("DURATION-X86-US-EAST-1")["terms"]["OnDemand"].values()
    term["priceDimensions"] = dict(reversed(term["priceDimensions"].items()))
    assert fetch().functions["x86_64"].on_demand_usd == 0.0000166667


@pytest.mark.parametrize(("begin", "count"), [("0", 2), ("1", 0)])
def test_there_must_be_one_price_of_the_first_unit(api: PriceList, begin: str, count: int) -> None:
    tiers = api.tiers("DURATION-X86-US-EAST-1")
    for tier in tiers[:2]:
        tier["beginRange"] = begin
    assert refusal().startswith(
        f"DURATION-X86-US-EAST-1 has {count} prices from the first unit on, not one, for AWSLambda Lambda-GB-Second"
    )


@pytest.mark.parametrize(("codes", "count"), [(["JRTCKXETXF", "OTHER"], 2), ([], 0)])
def test_there_must_be_one_term_on_demand(api: PriceList, codes: list[str], count: int) -> None:
    terms = api.named("GP3-US-EAST-1")["terms"]
    (term,) = terms["OnDemand"].values()
    terms["OnDemand"] = {f"GP3.{code}": term for code in codes}
    assert refusal().startswith(
        f"GP3-US-EAST-1 has {count} terms on demand, not one, for AmazonEC2 EBS:"
    )


def test_what_is_only_sold_reserved_has_no_term_on_demand(api: PriceList) -> None:
    del api.named("G5.XLARGE-0-US-EAST-1")["terms"]["OnDemand"]
    assert refusal().startswith(
        "G5.XLARGE-0-US-EAST-1 has 0 terms on demand, not one, for AmazonEC2 BoxUsage:g5"
    )


@pytest.mark.parametrize(
    ("price", "said"),
    [
        ({"CNY": "0.1"}, "has a price in CNY, not USD alone"),
        ({"USD": "0.1", "CNY": "0.7"}, "has a price in USD, CNY, not USD alone"),
        ({}, "has a price in no currency, not USD alone"),
        ({"USD": "0.0000000000"}, "has a price of 0.0; allowed: one above 0, up to 1e6"),
        ({"USD": "-0.1"}, "has a price of -0.1; allowed: one above 0, up to 1e6"),
        ({"USD": "nan"}, "has a price of nan; allowed: one above 0, up to 1e6"),
        ({"USD": "inf"}, "has a price of inf; allowed: one above 0, up to 1e6"),
    ],
)
def test_a_price_is_in_dollars_and_above_0(
    api: PriceList, price: dict[str, str], said: str
) -> None:
    api.tiers("GP3-US-EAST-1")[0]["pricePerUnit"] = price
    assert said in refusal()


@pytest.mark.parametrize(
    "unit", ["1M Requests", "1000 Requests", "Million Requests", "thousand requests"]
)
def test_a_price_is_for_one_unit(api: PriceList, unit: str) -> None:
    api.tiers("PUT-US-EAST-1")[0]["unit"] = unit
    assert refusal().startswith(
        f"PUT-US-EAST-1 has a price for {unit!r}, not for one unit, for AmazonS3"
    )


# Invalid answers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>log in here</html>",
        b"{}",
        b"[]",
        b'{"PriceList": ["{"]}',
        b'{"PriceList": ["[]"]}',
        b'{"PriceList": ["{}"]}',
        b'{"PriceList": ["{\\"product\\": {}}"]}',
        b'{"PriceList": [], "NextToken": "same"}',
    ],
    ids=str,
)
def test_an_answer_that_is_not_understood_is_refused(api: PriceList, content: bytes) -> None:
    api.content = content
    assert refusal().startswith(
        "the Price List API's answer is not understood for AWSLambda Lambda-GB-Second in us-east-1 (regionCode = "
    )


@pytest.mark.parametrize(
    ("place", "broken"),
    [
        ("pricePerUnit", None),
        ("pricePerUnit", 5),
        ("pricePerUnit", {"USD": "much"}),
        ("pricePerUnit", {"USD": None}),
        ("unit", None),
        ("unit", 5),
        ("beginRange", None),
        ("beginRange", "much"),
        ("beginRange", []),
    ],
)
def test_a_price_that_is_not_understood_is_refused(api: PriceList, place: str, broken: Any) -> None:
    api.tiers("PUT-US-EAST-1")[0][place] = broken
    assert refusal().startswith(
        "the Price List API's answer is not understood for AmazonS3 Requests-Tier1 in "
    )


@pytest.mark.parametrize("place", ["pricePerUnit", "unit", "beginRange"])
def test_a_price_that_lacks_something_is_refused(api: PriceList, place: str) -> None:
    del api.tiers("PUT-US-EAST-1")[0][place]
    assert refusal().endswith(f"group = S3-API-Tier1): KeyError: '{place}'")


@pytest.mark.parametrize("code", ["InvalidParameterException", "NotFoundException"])
def test_a_question_that_the_api_refuses_is_no_reason_to_do_without_it(
    api: PriceList, code: str
) -> None:
    api.failure = (400, code)
    text = refusal()
    assert text.startswith(
        "the Price List API refuses to be asked for AWSLambda Lambda-GB-Second in us-east-1 ("
    )
    assert text.endswith(f"): {code}: {code} as asked for")


# An API that cannot be asked


@pytest.fixture(params=["throttled", "denied", "expired", "fault", "nobody", "no credentials"])
def unreachable(
    request: pytest.FixtureRequest, api: PriceList, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Sets up the failure; returns the remark on it."""
    failures = {
        "throttled": (400, "ThrottlingException"),
        "denied": (400, "AccessDeniedException"),
        "expired": (400, "ExpiredTokenException"),
        "fault": (500, "InternalErrorException"),
    }
    if request.param in failures:
        api.failure = failures[request.param]
        return (
            f"the Price List API cannot be asked: {api.failure[1]}: {api.failure[1]} as asked for"
        )
    if request.param == "no credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        return "the Price List API cannot be asked: Unable to locate credentials"
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", url)
    return f'the Price List API cannot be asked: Could not connect to the endpoint URL: "{url}/"'


def test_without_it_the_dated_table_is_used_and_that_is_told(unreachable: str) -> None:
    prices, remark = asked()
    assert prices is PRICES
    assert remark == f"{unreachable}; the prices are from the dated table, {PRICES.as_of}"


@pytest.mark.parametrize("region", ["eu-central-1", "sa-east-1"])
def test_without_it_elsewhere_the_dated_table_counts_twice(unreachable: str, region: str) -> None:
    prices, remark = asked(region)
    assert (prices, prices.region) == (elsewhere(PRICES, region), region)
    assert (
        remark
        == f"{unreachable}; the prices are from the dated table of us-east-1 times 2, {PRICES.as_of}"
    )


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_without_it_and_without_a_dated_price_nothing_is_chosen(
    unreachable: str, region: str
) -> None:
    with pytest.raises(PricesUnreachableError) as error:
        asked(region, types=("g5.xlarge", "g6e.2xlarge", "g6e.4xlarge"))
    assert str(error.value).startswith(f"{unreachable}; the dated table")
    assert str(error.value).endswith(
        f"of {PRICES.as_of} has no price for instance_hour_usd.g6e.2xlarge, "
        "instance_hour_usd.g6e.4xlarge"
    )


def test_with_it_there_is_nothing_to_remark(api: PriceList) -> None:
    assert asked() == (fetch(), "")
