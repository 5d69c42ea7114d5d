"""A small AWS Price List API: GetProducts over a catalog, with the API's filters and pages.

``AWS_ENDPOINT_URL_PRICING`` points any boto3 client to it. Products have the API's form. The catalog also contains
products that differ in one attribute from the billed ones.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

TARGET = "AWSPriceListService.GetProducts"
ON_DEMAND = "JRTCKXETXF"
RATE = "6YS6EN2CT7"
FLAT = (("0", "Inf"),)
LAMBDA_TIERS = (("0", "6000000000"), ("6000000000", "15000000000"), ("15000000000", "Inf"))
PREFIXES = {"us-east-1": "USE1-", "eu-central-1": "EUC1-", "sa-east-1": "SAE1-"}


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        request = json.loads(self.body())
        owner: PriceList = self.server.owner
        owner.requests.append(request)
        if owner.failure:
            status, code = owner.failure
            self.answer(
                status, json.dumps({"__type": code, "message": f"{code} as asked for"}).encode()
            )
        elif self.headers["X-Amz-Target"] != TARGET or owner.content is not None:
            self.answer(200, owner.content or b"{}")
        else:
            self.answer(200, json.dumps(owner.page(request)).encode())


class PriceList(LoopbackServer):
    """The service on a loopback port, as a context manager.

    Attributes:
        products: The catalog. May change at any time.
        page_size: Maximum number of products per answer, whatever the request says.
        failure: Status and error code that every request gets, or None.
        content: Content that every request gets instead of products, or None.
        requests: All requests so far.
    """

    def __init__(self, products: Iterable[dict[str, Any]], *, page_size: int = 2) -> None:
        super().__init__(_Handler)
        self.products, self.page_size = list(products), page_size
        self.failure: tuple[int, str] | None = None
        self.content: bytes | None = None
        self.requests: list[dict[str, Any]] = []

    def page(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert 1 <= request["MaxResults"] <= 100
        found = [
            one
            for one in self.products
            if one["serviceCode"] == request["ServiceCode"]
            and all(_matches(one, **rule) for rule in request["Filters"])
        ]
        start = int(request.get("NextToken", "page 0").removeprefix("page "))
        end = start + min(self.page_size, request["MaxResults"])
        answer = {
            "FormatVersion": "aws_v1",
            "PriceList": [json.dumps(one) for one in found[start:end]],
        }
        return answer | ({"NextToken": f"page {end}"} if end < len(found) else {})

    def named(self, sku: str) -> dict[str, Any]:
        return next(one for one in self.products if one["product"]["sku"] == sku)

    def again(self, sku: str, new_sku: str, **attributes: str) -> dict[str, Any]:
        """Adds a copy of a product with these attributes changed."""
        twin = copy.deepcopy(self.named(sku))
        twin["product"]["sku"] = new_sku
        twin["product"]["attributes"] |= attributes
        self.products.append(twin)
        return twin

    def tiers(self, sku: str) -> list[dict[str, Any]]:
        """Returns the on-demand price tiers, by the amount used."""
        (term,) = self.named(sku)["terms"]["OnDemand"].values()
        return list(term["priceDimensions"].values())


def _matches(product: Mapping[str, Any], Type: str, Field: str, Value: str) -> bool:
    assert Type == "TERM_MATCH"
    known = product["product"]["attributes"] | {
        "productFamily": product["product"].get("productFamily")
    }
    return known.get(Field) == Value


def product(
    sku: str,
    service: str,
    family: str | None,
    unit: str,
    prices: Iterable[str],
    *,
    tiers: Iterable[tuple[str, str]] = FLAT,
    **attributes: str,
) -> dict[str, Any]:
    """Returns one product in the API's form: on demand, and reserved for a year for next to nothing."""

    def term(code: str, rows: Iterable[tuple[str, str, str]], **more: str) -> dict[str, Any]:
        rates = {
            f"{sku}.{code}.{RATE}{begin}": {
                "unit": unit,
                "beginRange": begin,
                "endRange": end,
                "description": f"{usd} per {unit}",
                "appliesTo": [],
                "rateCode": f"{sku}.{code}.{RATE}{begin}",
                "pricePerUnit": {"USD": usd},
            }
            for begin, end, usd in rows
        }
        return {
            f"{sku}.{code}": {
                "priceDimensions": rates,
                "sku": sku,
                "effectiveDate": "2026-11-01T00:00:00Z",
                "offerTermCode": code,
                "termAttributes": more,
            }
        }

    return {
        "product": {
            **({"productFamily": family} if family else {}),
            "sku": sku,
            "attributes": {"servicecode": service, "locationType": "AWS Region"} | attributes,
        },
        "serviceCode": service,
        "terms": {
            "OnDemand": term(
                ON_DEMAND, [(*ends, usd) for ends, usd in zip(tiers, prices, strict=True)]
            ),
            "Reserved": term(
                "6QCMYABX3D",
                [("0", "Inf", "0.0000000001")],
                LeaseContractLength="1yr",
                PurchaseOption="No Upfront",
            ),
        },
        "version": "20261119000000",
        "publicationDate": "2026-11-19T00:00:00Z",
    }


def catalogue(region: str) -> list[dict[str, Any]]:
    """Returns a small catalog of one region and of the free tier, which has no region."""
    return [*_functions(region), *_instances(region), *_caches(region), *_others(region)]


def _sku(region: str, name: str) -> str:
    return f"{name}-{region}".upper()


def _functions(region: str) -> list[dict[str, Any]]:
    prefix = "" if region == "us-east-1" else PREFIXES[region]
    made = []
    for suffix, name, tiers, capacity, duration in (
        (
            "",
            "X86",
            ("0.0000166667", "0.0000150000", "0.0000133334"),
            "0.0000041667",
            "0.0000097222",
        ),
        (
            "-ARM",
            "ARM",
            ("0.0000133334", "0.0000120001", "0.0000106667"),
            "0.0000033334",
            "0.0000077778",
        ),
    ):
        for part, group, usage, unit, prices, ranges in (
            (
                "DURATION",
                "AWS-Lambda-Duration",
                "Lambda-GB-Second",
                "Lambda-GB-Second",
                tiers,
                LAMBDA_TIERS,
            ),
            (
                "CAPACITY",
                "AWS-Lambda-Provisioned-Concurrency",
                "Lambda-Provisioned-Concurrency",
                "Lambda-GB-Second",
                (capacity,),
                FLAT,
            ),
            (
                "PROVISIONED",
                "AWS-Lambda-Duration-Provisioned",
                "Lambda-Provisioned-GB-Second",
                "Lambda-GB-Second",
                (duration,),
                FLAT,
            ),
            (
                "STORAGE",
                "AWS-Lambda-Storage-Duration",
                "Lambda-Storage-GB-Second",
                "GB-Seconds",
                ("0.0000000309",),
                FLAT,
            ),
            ("REQUEST", "AWS-Lambda-Requests", "Request", "Requests", ("0.0000002000",), FLAT),
        ):
            made.append(
                product(
                    _sku(region, f"{part}-{name}"),
                    "AWSLambda",
                    "Serverless",
                    unit,
                    prices,
                    tiers=ranges,
                    group=group + suffix,
                    usagetype=prefix + usage + suffix,
                    regionCode=region,
                )
            )
    made.append(
        product(
            _sku(region, "EDGE"),
            "AWSLambda",
            "Serverless",
            "Requests",
            ("0.0000006000",),
            regionCode=region,
            group="AWS-Lambda-Requests",
            usagetype=f"{prefix}Lambda-Edge-Request",
        )
    )
    made.append(
        product(
            _sku(region, "FREE"),
            "AWSLambda",
            "Serverless",
            "Requests",
            ("0.0000000000",),
            group="AWS-Lambda-Requests",
            usagetype="Global-Request",
            location="Any",
        )
    )
    return made


def _instances(region: str) -> list[dict[str, Any]]:
    prefix = "" if region == "us-east-1" else PREFIXES[region]
    made = []
    for instance_type, usd in (
        ("g4dn.xlarge", "0.5260000000"),
        ("g5.xlarge", "1.0060000000"),
        ("c5.9xlarge", "1.5300000000"),
    ):
        usual = {
            "instanceType": instance_type,
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "licenseModel": "No License required",
            "marketoption": "OnDemand",
            "operation": "RunInstances",
            "usagetype": f"{prefix}BoxUsage:{instance_type}",
        }
        for number, (price, other) in enumerate(
            (
                (usd, {}),
                ("9.1", {"operatingSystem": "Windows"}),
                ("9.2", {"tenancy": "Dedicated"}),
                ("9.3", {"preInstalledSw": "SQL Std"}),
                ("9.4", {"licenseModel": "Bring your own license"}),
                (
                    "0.0",
                    {
                        "capacitystatus": "AllocatedCapacityReservation",
                        "usagetype": f"{prefix}Reservation:{instance_type}",
                    },
                ),
                ("0.0", {"capacitystatus": "UnusedCapacityReservation"}),
                ("9.5", {"marketoption": "CapacityBlock"}),
                ("9.6", {"usagetype": f"{prefix}HostBoxUsage:{instance_type}"}),
            )
        ):
            made.append(
                product(
                    _sku(region, f"{instance_type}-{number}"),
                    "AmazonEC2",
                    "Compute Instance",
                    "Hrs",
                    (price,),
                    **usual | other,
                )
            )
    return made


def _caches(region: str) -> list[dict[str, Any]]:
    """Returns the products of serverless caches, which have a prefix in us-east-1, too."""
    made = []
    for engine, gib, ecpu in (
        ("Valkey", "0.0840000000", "0.0000000023"),
        ("Redis", "0.1250000000", "0.0000000034"),
        ("Memcached", "0.1250000000", "0.0000000034"),
    ):
        common = {"regionCode": region, "cacheEngine": engine}
        for part, usage, unit, usd in (
            ("DATA", "CachedData", "GB-hours", gib),
            ("ECPU", "ElastiCacheProcessingUnits", "ElastiCacheProcessingUnits", ecpu),
        ):
            made.append(
                product(
                    _sku(region, f"{part}-{engine}"),
                    "AmazonElastiCache",
                    "ElastiCache Serverless",
                    unit,
                    (usd,),
                    usagetype=f"{PREFIXES[region]}{usage}:{engine}",
                    **common,
                )
            )
    return made


def _others(region: str) -> list[dict[str, Any]]:
    prefix = "" if region == "us-east-1" else PREFIXES[region]
    address = f"{PREFIXES[region]}PublicIPv4:"
    rows = (
        (
            "GP3",
            "AmazonEC2",
            "Storage",
            "GB-Mo",
            "0.0800000000",
            f"{prefix}EBS:VolumeUsage.gp3",
            {"volumeApiName": "gp3"},
        ),
        (
            "GP2",
            "AmazonEC2",
            "Storage",
            "GB-Mo",
            "0.1000000000",
            f"{prefix}EBS:VolumeUsage.gp2",
            {"volumeApiName": "gp2"},
        ),
        (
            "GP3-IOPS",
            "AmazonEC2",
            "System Operation",
            "IOPS-Mo",
            "0.0050000000",
            f"{prefix}EBS:VolumeP-IOPS.gp3",
            {"volumeApiName": "gp3"},
        ),
        (
            "IPV4",
            "AmazonVPC",
            None,
            "Hrs",
            "0.0050000000",
            f"{address}InUseAddress",
            {"group": "VPCPublicIPv4Address"},
        ),
        (
            "IPV4-IDLE",
            "AmazonVPC",
            None,
            "Hrs",
            "0.0060000000",
            f"{address}IdleAddress",
            {"group": "VPCPublicIPv4Address"},
        ),
        (
            "PUT",
            "AmazonS3",
            "API Request",
            "Requests",
            "0.0000050000",
            f"{prefix}Requests-Tier1",
            {"group": "S3-API-Tier1"},
        ),
        (
            "GET",
            "AmazonS3",
            "API Request",
            "Requests",
            "0.0000004000",
            f"{prefix}Requests-Tier2",
            {"group": "S3-API-Tier2"},
        ),
        (
            "PUT-IA",
            "AmazonS3",
            "API Request",
            "Requests",
            "0.0000100000",
            f"{prefix}Requests-SIA-Tier1",
            {"group": "S3-API-SIA-Tier1"},
        ),
    )
    return [
        product(
            _sku(region, name),
            service,
            family,
            unit,
            (usd,),
            usagetype=usage,
            regionCode=region,
            **more,
        )
        for name, service, family, unit, usd, usage, more in rows
    ]
