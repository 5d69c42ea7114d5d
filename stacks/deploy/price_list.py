"""Gets list prices from the AWS Price List API: exactly one product for each price, or the dated table.

A product is identified by its service, filters that the API applies, and its usage type. The API cannot filter by usage
type, because most regions prefix it (``EUC1-Request``; ``Request`` in us-east-1).
"""

from __future__ import annotations

import json
import re
from typing import Any

from runtime.aws.asking import AccountError, pages_of
from runtime.errors import RunError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.prices import LambdaPrices, PriceTable

PRICE_LIST_REGION = "us-east-1"
"""Region of the API itself, which has the prices of all regions. Others: eu-central-1, ap-south-1."""
SERVERLESS_CACHE_GIB_MIN = 0.1
"""Smallest billed size of a serverless Valkey cache. It is not a price, so the API does not have it."""
_PREFIX = "(?:EU|[A-Z]{3}[0-9])-"
"""Region prefixes of usage types: USE1-, EU-, EUC1-."""
_USD_MAX, _PAGE = 1e6, 100


class PriceListError(RunError):
    """The Price List API does not name exactly one product and price for something that a deployment is billed for."""


_Product = tuple[str, str, dict[str, str]]
"""Code of the service, usage type without a region's prefix, and attributes that it must have besides the region."""


def _products(architecture: str) -> dict[str, _Product]:
    """Returns the products by the price's name in a `PriceTable`, or in its `LambdaPrices`."""
    arm = {"x86_64": "", "arm64": "-ARM"}[architecture]

    def function(usage: str, group: str) -> _Product:
        family = {"productFamily": "Serverless", "group": f"AWS-Lambda-{group}{arm}"}
        return "AWSLambda", usage + arm, family

    warm = "Provisioned-Concurrency"
    cache = {"productFamily": "ElastiCache Serverless"}
    volume = {"productFamily": "Storage", "volumeApiName": "gp3"}
    return {
        "on_demand_usd": function("Lambda-GB-Second", "Duration"),
        "provisioned_capacity_usd": function(f"Lambda-{warm}", warm),
        "provisioned_duration_usd": function(
            "Lambda-Provisioned-GB-Second", "Duration-Provisioned"
        ),
        "request_usd": function("Request", "Requests"),
        "serverless_cache_gib_hour_usd": ("AmazonElastiCache", "CachedData:Valkey", cache),
        "serverless_cache_ecpu_usd": (
            "AmazonElastiCache",
            "ElastiCacheProcessingUnits:Valkey",
            cache,
        ),
        "volume_gib_month_usd": ("AmazonEC2", "EBS:VolumeUsage.gp3", volume),
        "public_ipv4_hour_usd": (
            "AmazonVPC",
            "PublicIPv4:InUseAddress",
            {"group": "VPCPublicIPv4Address"},
        ),
        "put_usd": ("AmazonS3", "Requests-Tier1", {"group": "S3-API-Tier1"}),
    }


_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
    "marketoption": "OnDemand",
}
"""An instance's attributes, which capacity reservations and capacity blocks do not have."""


def choose_prices(
    client: Any, experiment: ResolvedExperiment, other: PriceTable, today: str
) -> tuple[PriceTable, str]:
    """Returns prices of everything a deployment can be billed for: all of them the API's, or all another table's.

    Args:
        client: boto3 client for ``pricing``, in `PRICE_LIST_REGION`.
        experiment: What is deployed. Of functions, only its processor's prices are fetched.
        other: The other table, for the deployment's region.
        today: A date such as 2026-11-20.

    Returns:
        The prices, and why they are not the API's; empty if they are.

    Raises:
        AccountError: The API has no price of something, and the other table lacks an instance type.
    """
    architecture, types = experiment.actor.architecture, experiment.learner.instance_types
    products = _products(architecture)
    for name in types:
        attributes = {"instanceType": name, **_ON_DEMAND}
        products[name] = ("AmazonEC2", f"BoxUsage:{name}", attributes)
    skus: dict[str, str] = {}
    try:
        usd = {name: _price(client, one, other.region, skus) for name, one in products.items()}
    except (AccountError, PriceListError) as error:
        lacking = [name for name in types if name not in other.instance_hour_usd]
        if lacking:
            raise AccountError(
                f"{error}; {other.source} of {other.as_of} has no price of {', '.join(lacking)}. Nothing was deployed; "
                "allowed: --prices FILE, which counts with your own"
            ) from error
        return other, (
            f"{error}; the prices are from {other.source}, {other.as_of}. --prices FILE counts with your own"
        )
    function = LambdaPrices(**{name: usd.pop(name) for name in list(products)[:3]})
    hourly = {name: usd.pop(name) for name in types}
    return PriceTable(
        region=other.region,
        as_of=today,
        source="the Price List API",
        skus=skus,
        functions={architecture: function},
        instance_hour_usd=hourly,
        serverless_cache_gib_min=SERVERLESS_CACHE_GIB_MIN,
        **usd,
    ), ""


def _price(client: Any, product: _Product, region: str, skus: dict[str, str]) -> float:
    """Returns a price in dollars for one unit of the lowest tier, and adds the SKU with its effective date.

    Raises:
        AccountError: The API does not answer.
        PriceListError: It does not have exactly one such product, with one price in dollars, above 0, for one unit.
    """
    service, usage, attributes = product
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value}
        for name, value in {"regionCode": region, **attributes}.items()
    ]
    texts = pages_of(
        client,
        "get_products",
        "PriceList",
        ServiceCode=service,
        FormatVersion="aws_v1",
        PaginationConfig={"PageSize": _PAGE},
        Filters=filters,
    )
    pattern = f"(?:{_PREFIX}|{re.escape(region)}-)?{re.escape(usage)}"
    try:
        listed = map(json.loads, texts)
        (found,) = [
            one
            for one in listed
            if re.fullmatch(pattern, one["product"]["attributes"]["usagetype"])
        ]
        (term,) = found["terms"]["OnDemand"].values()
        tiers = term["priceDimensions"].values()
        (tier,) = [one for one in tiers if float(one["beginRange"]) == 0]
        ((currency, text),) = tier["pricePerUnit"].items()
        usd = float(text)
        is_sound = currency == "USD" and 0 < usd <= _USD_MAX
        if not is_sound or re.search(r"\d|illion|ousand", tier["unit"]):
            raise ValueError(f"{usd} {currency} for {tier['unit']}")
        skus[usage] = f"{found['product']['sku']} since {term['effectiveDate'][:10]}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PriceListError(
            f"the Price List API does not have exactly one price of {service} {usage} in {region}"
        ) from error
    return usd
