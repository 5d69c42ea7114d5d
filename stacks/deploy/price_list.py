"""Gets list prices from the AWS Price List API: exactly one product for each price, or the dated table.

A product is identified by its service, filters that the API applies, and its usage type. The API cannot filter by usage
type, because most regions prefix it (``EUC1-Request``; ``Request`` in us-east-1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Product:
    """The product of one price.

    Attributes:
        service: Its code.
        usage: Its usage type, without a region's prefix.
        filters: Attributes that it must have, in addition to the region.
    """

    service: str
    usage: str
    filters: Mapping[str, str]


def _products(architecture: str) -> dict[str, _Product]:
    """Returns the products by the price's name in a `PriceTable`, or in its `LambdaPrices`."""
    suffix = {"x86_64": "", "arm64": "-ARM"}[architecture]

    def function(usage: str, group: str) -> _Product:
        filters = {"productFamily": "Serverless", "group": group + suffix}
        return _Product("AWSLambda", usage + suffix, filters)

    def cache(usage: str) -> _Product:
        filters = {"productFamily": "ElastiCache Serverless"}
        return _Product("AmazonElastiCache", f"{usage}:Valkey", filters)

    warm = "Provisioned-Concurrency"
    volume = {"productFamily": "Storage", "volumeApiName": "gp3"}
    address = {"group": "VPCPublicIPv4Address"}
    return {
        "on_demand_usd": function("Lambda-GB-Second", "AWS-Lambda-Duration"),
        "provisioned_capacity_usd": function(f"Lambda-{warm}", f"AWS-Lambda-{warm}"),
        "provisioned_duration_usd": function(
            "Lambda-Provisioned-GB-Second", "AWS-Lambda-Duration-Provisioned"
        ),
        "request_usd": function("Request", "AWS-Lambda-Requests"),
        "serverless_cache_gib_hour_usd": cache("CachedData"),
        "serverless_cache_ecpu_usd": cache("ElastiCacheProcessingUnits"),
        "volume_gib_month_usd": _Product("AmazonEC2", "EBS:VolumeUsage.gp3", volume),
        "public_ipv4_hour_usd": _Product("AmazonVPC", "PublicIPv4:InUseAddress", address),
        "put_usd": _Product("AmazonS3", "Requests-Tier1", {"group": "S3-API-Tier1"}),
    }


def _instance(instance_type: str) -> _Product:
    """Returns an on-demand instance, without the products for capacity reservations and capacity blocks."""
    filters = {
        "instanceType": instance_type,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
        "marketoption": "OnDemand",
    }
    return _Product("AmazonEC2", f"BoxUsage:{instance_type}", filters)


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
    instances = {name: _instance(name) for name in types}
    skus: dict[str, str] = {}
    try:
        usd = {
            name: _price(client, product, other.region, skus)
            for name, product in (products | instances).items()
        }
        function = LambdaPrices(**{name: usd.pop(name) for name in list(products)[:3]})
        hourly = {name: usd.pop(name) for name in instances}
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
    except (AccountError, PriceListError) as error:
        lacking = [name for name in types if name not in other.instance_hour_usd]
        if lacking:
            raise AccountError(
                f"{error}; {other.source} of {other.as_of} has no price of {', '.join(lacking)}. Nothing was deployed; "
                "allowed: --prices FILE, which counts with your own"
            ) from error
        return other, f"{error}; the prices are from {other.source}, {other.as_of}."


def _price(client: Any, product: _Product, region: str, skus: dict[str, str]) -> float:
    """Returns a price in dollars for one unit of the lowest tier, and adds the SKU with its effective date.

    Raises:
        AccountError: The API does not answer.
        PriceListError: It does not have exactly one such product, with one price in dollars, above 0, for one unit.
    """
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value}
        for name, value in {"regionCode": region, **product.filters}.items()
    ]
    texts = pages_of(
        client,
        "get_products",
        "PriceList",
        ServiceCode=product.service,
        FormatVersion="aws_v1",
        PaginationConfig={"PageSize": _PAGE},
        Filters=filters,
    )
    usage = re.compile(f"(?:{_PREFIX}|{re.escape(region)}-)?{re.escape(product.usage)}")
    try:
        found = [json.loads(text) for text in texts]
        (one,) = [
            each for each in found if usage.fullmatch(each["product"]["attributes"]["usagetype"])
        ]
        (term,) = one["terms"]["OnDemand"].values()
        (tier,) = [
            each for each in term["priceDimensions"].values() if float(each["beginRange"]) == 0
        ]
        ((currency, text),) = tier["pricePerUnit"].items()
        usd = float(text)
        is_sound = currency == "USD" and 0 < usd <= _USD_MAX
        if not is_sound or re.search(r"\d|illion|ousand", tier["unit"]):
            raise ValueError(f"{usd} {currency} for {tier['unit']}")
        skus[product.usage] = f"{one['product']['sku']} since {term['effectiveDate'][:10]}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PriceListError(
            f"the Price List API does not have exactly one price of {product.service} {product.usage} in {region}"
        ) from error
    return usd
