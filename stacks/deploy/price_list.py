"""Gets list prices from the AWS Price List API: exactly one product for each price, or another table's price.

A product is identified by its service, filters that the API applies, and its usage type. The API cannot filter by usage
type, because most regions prefix it (``EUC1-Request``; ``Request`` in us-east-1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.aws.failures import (
    BotoCoreError,
    ClientError,
    PaginationError,
    ResponseParserError,
    code_of,
    message_of,
)
from runtime.errors import RunError, one_line
from runtime.money.prices import LambdaPrices, PriceTable

PRICE_LIST_REGION = "us-east-1"
"""Region of the API itself, which has the prices of all regions. Others: eu-central-1, ap-south-1."""
SERVERLESS_CACHE_GIB_MIN = 0.1
"""Smallest billed size of a serverless Valkey cache. It is not a price, so the API does not have it."""
_PAGE = 100
_REFUSED_QUESTIONS = ("InvalidParameterException", "NotFoundException")
_PREFIX = "(?:EU|[A-Z]{3}[0-9])-"
"""Region prefixes of usage types: USE1-, EU-, EUC1-."""


class PriceListError(RunError):
    """The Price List API does not name exactly one product and price for something that a deployment is billed for."""


class PricesUnreachableError(RunError):
    """The Price List API cannot be reached: no network, no credentials, no permission, or too many requests."""


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


def _lambda(usage: str, group: str, suffix: str) -> _Product:
    return _Product(
        "AWSLambda", usage + suffix, {"productFamily": "Serverless", "group": group + suffix}
    )


def _instance(instance_type: str) -> _Product:
    """Returns an on-demand instance, without the products for capacity reservations and capacity blocks."""
    return _Product(
        "AmazonEC2",
        f"BoxUsage:{instance_type}",
        {
            "instanceType": instance_type,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "licenseModel": "No License required",
            "marketoption": "OnDemand",
        },
    )


def _products(architecture: str, instance_types: Iterable[str]) -> dict[str, _Product]:
    """Returns the products by the price's place in a `PriceTable`."""
    suffix, function = {"x86_64": "", "arm64": "-ARM"}[architecture], f"functions.{architecture}"
    serverless = {"productFamily": "ElastiCache Serverless"}
    return {
        f"{function}.on_demand_usd": _lambda("Lambda-GB-Second", "AWS-Lambda-Duration", suffix),
        f"{function}.provisioned_capacity_usd": _lambda(
            "Lambda-Provisioned-Concurrency", "AWS-Lambda-Provisioned-Concurrency", suffix
        ),
        f"{function}.provisioned_duration_usd": _lambda(
            "Lambda-Provisioned-GB-Second", "AWS-Lambda-Duration-Provisioned", suffix
        ),
        "request_usd": _lambda("Request", "AWS-Lambda-Requests", suffix),
        **{f"instance_hour_usd.{name}": _instance(name) for name in instance_types},
        "serverless_cache_gib_hour_usd": _Product(
            "AmazonElastiCache", "CachedData:Valkey", serverless
        ),
        "serverless_cache_ecpu_usd": _Product(
            "AmazonElastiCache", "ElastiCacheProcessingUnits:Valkey", serverless
        ),
        "volume_gib_month_usd": _Product(
            "AmazonEC2", "EBS:VolumeUsage.gp3", {"productFamily": "Storage", "volumeApiName": "gp3"}
        ),
        "public_ipv4_hour_usd": _Product(
            "AmazonVPC", "PublicIPv4:InUseAddress", {"group": "VPCPublicIPv4Address"}
        ),
        "put_usd": _Product("AmazonS3", "Requests-Tier1", {"group": "S3-API-Tier1"}),
    }


def choose_prices(
    client: Any, architecture: str, instance_types: Sequence[str], other: PriceTable, today: str
) -> tuple[PriceTable, str]:
    """Returns prices of everything a deployment can be billed for: the API's, or another table's if it has none.

    Args:
        client: boto3 client for ``pricing``, in `PRICE_LIST_REGION`.
        architecture: ``actor.architecture``; only its function prices are fetched.
        instance_types: ``learner.instance_types``.
        other: The other table, for the deployment's region.
        today: A date such as 2026-11-20.

    Returns:
        The prices, and a remark for people, empty if there is none.

    Raises:
        PriceListError: The API has no price for something, or several, or an unreadable answer, and the other table has
            no price.
        PricesUnreachableError: The API cannot be reached, and the other table lacks one of the prices.
    """
    products = _products(architecture, instance_types)
    usd, skus, problems = {}, {}, {}
    try:
        for name, product in products.items():
            try:
                usd[name], skus[name] = _price(client, product, other.region)
            except PriceListError as error:
                usd[name], problems[name] = _other_price(other, name, error), str(error)
    except PricesUnreachableError as error:
        if lacking := [name for name in products if _price_at(other, name) is None]:
            raise PricesUnreachableError(
                f"{error}; {other.source} of {other.as_of} has no price for {', '.join(lacking)}"
            ) from error
        return other, f"{error}; the prices are from {other.source}, {other.as_of}"
    functions, instances = _below("functions", usd), _below("instance_hour_usd", usd)
    others = f" and, for {', '.join(problems)}, {other.source} of {other.as_of}" if problems else ""
    prices = PriceTable(
        region=other.region,
        as_of=today,
        source=f"the Price List API{others}",
        skus=skus,
        instance_hour_usd=instances,
        functions={architecture: LambdaPrices(**_below(architecture, functions))},
        serverless_cache_gib_min=SERVERLESS_CACHE_GIB_MIN,
        **{name: value for name, value in usd.items() if "." not in name},
    )
    return prices, "; ".join(
        f"{name} is from {other.source}, {other.as_of}: {problem}"
        for name, problem in problems.items()
    )


def _below(place: str, usd: Mapping[str, float]) -> dict[str, float]:
    return {
        name.removeprefix(f"{place}."): value
        for name, value in usd.items()
        if name.startswith(f"{place}.")
    }


def _other_price(other: PriceTable, name: str, problem: PriceListError) -> float:
    """Returns the other table's price; raises ``problem`` if it has none."""
    usd = _price_at(other, name)
    if usd is None:
        raise problem
    return usd


def _price_at(table: PriceTable, name: str) -> float | None:
    """Returns a price by its place in a table; None if there is none."""
    place, _, key = name.partition(".")
    if place == "functions":
        architecture, _, key = key.partition(".")
        found = table.functions.get(architecture)
        return None if found is None else float(getattr(found, key))
    return table.instance_hour_usd.get(key) if key else float(getattr(table, place))


def _price(client: Any, product: _Product, region: str) -> tuple[float, str]:
    """Returns a price in dollars for one unit of the lowest tier, and the SKU with its effective date."""
    filters = {"regionCode": region, **product.filters}
    asked = (
        f"{product.service} {product.usage} in {region} "
        f"({', '.join(f'{name} = {value}' for name, value in filters.items())})"
    )
    try:
        found = _find(_ask(client, product.service, filters, asked), product.usage, region)
        if len(found) != 1:
            raise PriceListError(
                f"the Price List API has {len(found) or 'no'} products, not one, for {asked}"
                f"{': ' if found else ''}{', '.join(sorted(one['product']['sku'] for one in found))}"
            )
        return _read(found[0], asked)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PriceListError(
            f"the Price List API's answer is not understood for {asked}: "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error


def _ask(client: Any, service: str, filters: Mapping[str, str], asked: str) -> list[str]:
    """Returns the API's products that have these attributes, as JSON."""
    try:
        pages = client.get_paginator("get_products").paginate(
            ServiceCode=service,
            FormatVersion="aws_v1",
            PaginationConfig={"PageSize": _PAGE},
            Filters=[
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in filters.items()
            ],
        )
        return [text for page in pages for text in page["PriceList"]]
    except (PaginationError, ResponseParserError) as error:
        raise PriceListError(
            f"the Price List API's answer is not understood for {asked}: {one_line(str(error))}"
        ) from error
    except ClientError as error:
        text = one_line(f"{code_of(error)}: {message_of(error)}")
        if code_of(error) in _REFUSED_QUESTIONS:
            raise PriceListError(
                f"the Price List API refuses to be asked for {asked}: {text}"
            ) from error
        raise PricesUnreachableError(f"the Price List API cannot be asked: {text}") from error
    except BotoCoreError as error:
        raise PricesUnreachableError(
            f"the Price List API cannot be asked: {one_line(str(error))}"
        ) from error


def _find(texts: list[str], usage: str, region: str) -> list[dict[str, Any]]:
    """Returns the products with this usage type, with or without the region's prefix."""
    pattern = re.compile(f"(?:{_PREFIX}|{re.escape(region)}-)?{re.escape(usage)}")
    products = [json.loads(text) for text in texts]
    return [one for one in products if pattern.fullmatch(one["product"]["attributes"]["usagetype"])]


def _read(product: Mapping[str, Any], asked: str) -> tuple[float, str]:
    """Reads a product's price and its SKU.

    Raises:
        PriceListError: It does not have exactly one on-demand price in dollars, above 0, for one unit.
    """
    sku, terms = product["product"]["sku"], list(product["terms"].get("OnDemand", {}).values())
    if len(terms) != 1:
        raise PriceListError(f"{sku} has {len(terms)} terms on demand, not one, for {asked}")
    tiers = [
        tier for tier in terms[0]["priceDimensions"].values() if float(tier["beginRange"]) == 0
    ]
    if len(tiers) != 1:
        raise PriceListError(
            f"{sku} has {len(tiers)} prices from the first unit on, not one, for {asked}"
        )
    prices, unit = tiers[0]["pricePerUnit"], tiers[0]["unit"]
    if list(prices) != ["USD"]:
        raise PriceListError(
            f"{sku} has a price in {', '.join(prices) or 'no currency'}, not USD alone, for {asked}"
        )
    if re.search(r"\d|illion|ousand", unit):
        raise PriceListError(f"{sku} has a price for {unit!r}, not for one unit, for {asked}")
    usd = float(prices["USD"])
    if not 0 < usd <= 1e6:
        raise PriceListError(
            f"{sku} has a price of {usd}; allowed: one above 0, up to 1e6; for {asked}"
        )
    return usd, f"{sku} since {terms[0]['effectiveDate'][: len('2026-11-20')]}"
