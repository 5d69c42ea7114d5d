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
_PAGE = 2
"""Products in an answer, whatever the request says."""
PREFIXES = {"us-east-1": "USE1-", "eu-central-1": "EUC1-", "sa-east-1": "SAE1-"}


class _Handler(QuietHandler):
    def do_POST(self) -> None:
        assert self.headers["X-Amz-Target"] == TARGET
        self.answer(200, json.dumps(self.server.owner.page(json.loads(self.body()))).encode())


class PriceList(LoopbackServer):
    """The service on a loopback port, as a context manager.

    Attributes:
        products: The catalog. May change at any time.
    """

    def __init__(self, products: Iterable[dict[str, Any]]) -> None:
        super().__init__(_Handler)
        self.products = list(products)

    def page(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert 1 <= request["MaxResults"] <= 100
        found = [
            one
            for one in self.products
            if one["serviceCode"] == request["ServiceCode"]
            and all(_matches(one, **rule) for rule in request["Filters"])
        ]
        start = int(request.get("NextToken", "page 0").removeprefix("page "))
        end = start + _PAGE
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
    name: str, service: str, family: str, unit: str, prices: str, **attributes: str
) -> dict[str, Any]:
    """Returns one product in the API's form: on demand, and reserved for a year for next to nothing."""
    sku, usd = name.upper(), prices.split()

    def term(code: str, rows: Iterable[tuple[tuple[str, str], str]]) -> dict[str, Any]:
        rates = {
            f"{sku}.{code}.{RATE}{begin}": {
                "unit": unit,
                "beginRange": begin,
                "endRange": end,
                "pricePerUnit": {"USD": usd},
            }
            for (begin, end), usd in rows
        }
        return {
            f"{sku}.{code}": {"priceDimensions": rates, "effectiveDate": "2026-11-01T00:00:00Z"}
        }

    return {
        "product": {
            **({"productFamily": family} if family else {}),
            "sku": sku,
            "attributes": {"servicecode": service, **attributes},
        },
        "serviceCode": service,
        "terms": {
            "OnDemand": term(ON_DEMAND, zip(LAMBDA_TIERS if usd[1:] else FLAT, usd, strict=True)),
            "Reserved": term("6QCMYABX3D", [(FLAT[0], "0.0000000001")]),
        },
    }


_PRODUCTS = """
AWSLambda|Serverless|group
TIME-X86|Lambda-GB-Second|0.0000166667 0.0000150000 0.0000133334|{own}Lambda-GB-Second|AWS-Lambda-Duration
CAPACITY-X86|Lambda-GB-Second|0.0000041667|{own}Lambda-Provisioned-Concurrency|AWS-Lambda-Provisioned-Concurrency
WARM-X86|Lambda-GB-Second|0.0000097222|{own}Lambda-Provisioned-GB-Second|AWS-Lambda-Duration-Provisioned
STORAGE-X86|GB-Seconds|0.0000000309|{own}Lambda-Storage-GB-Second|AWS-Lambda-Storage-Duration
REQUEST-X86|Requests|0.0000002000|{own}Request|AWS-Lambda-Requests
TIME-ARM|Lambda-GB-Second|0.0000133334 0.0000120001 0.0000106667|{own}Lambda-GB-Second-ARM|AWS-Lambda-Duration-ARM
CAPACITY-ARM|Lambda-GB-Second|0.0000033334|{own}Lambda-Provisioned-Concurrency-ARM|AWS-Lambda-Provisioned-Concurrency-ARM
WARM-ARM|Lambda-GB-Second|0.0000077778|{own}Lambda-Provisioned-GB-Second-ARM|AWS-Lambda-Duration-Provisioned-ARM
REQUEST-ARM|Requests|0.0000002000|{own}Request-ARM|AWS-Lambda-Requests-ARM
EDGE|Requests|0.0000006000|{own}Lambda-Edge-Request|AWS-Lambda-Requests
FREE|Requests|0.0000000000|Global-Request|AWS-Lambda-Requests,location=Any,regionCode=
AmazonElastiCache|ElastiCache Serverless|cacheEngine
DATA-VALKEY|GB-hours|0.0840000000|{always}CachedData:Valkey|Valkey
ECPU-VALKEY|ElastiCacheProcessingUnits|0.0000000023|{always}ElastiCacheProcessingUnits:Valkey|Valkey
DATA-REDIS|GB-hours|0.1250000000|{always}CachedData:Redis|Redis
ECPU-REDIS|ElastiCacheProcessingUnits|0.0000000034|{always}ElastiCacheProcessingUnits:Redis|Redis
AmazonEC2|Storage|volumeApiName
GP3|GB-Mo|0.0800000000|{own}EBS:VolumeUsage.gp3|gp3
GP2|GB-Mo|0.1000000000|{own}EBS:VolumeUsage.gp2|gp2
AmazonEC2|System Operation|volumeApiName
GP3-IOPS|IOPS-Mo|0.0050000000|{own}EBS:VolumeP-IOPS.gp3|gp3
AmazonVPC||group
IPV4|Hrs|0.0050000000|{always}PublicIPv4:InUseAddress|VPCPublicIPv4Address
IPV4-IDLE|Hrs|0.0060000000|{always}PublicIPv4:IdleAddress|VPCPublicIPv4Address
AmazonS3|API Request|group
PUT|Requests|0.0000050000|{own}Requests-Tier1|S3-API-Tier1
GET|Requests|0.0000004000|{own}Requests-Tier2|S3-API-Tier2
PUT-IA|Requests|0.0000100000|{own}Requests-SIA-Tier1|S3-API-SIA-Tier1
"""
"""Each service's family and attribute, and its products: name, unit, prices of all tiers, usage type, and attribute.

``own`` is the region's prefix, which us-east-1 lacks for most services, but not ``always``.
"""
_INSTANCES = {"g5.xlarge": "1.0060000000", "c5.9xlarge": "1.5300000000"}
_USUAL = (
    "operatingSystem=Linux,tenancy=Shared,preInstalledSw=NA,capacitystatus=Used,"
    "licenseModel=No License required,marketoption=OnDemand,operation=RunInstances"
)
_OTHERS = """
9.1|operatingSystem=Windows
9.2|tenancy=Dedicated
9.3|preInstalledSw=SQL Std
9.4|licenseModel=Bring your own license
0.0|capacitystatus=AllocatedCapacityReservation,usagetype={own}Reservation:{kind}
0.0|capacitystatus=UnusedCapacityReservation
9.5|marketoption=CapacityBlock
9.6|usagetype={own}HostBoxUsage:{kind}
"""
"""Prices of an instance in another way than the usual one."""


def catalogue(region: str) -> list[dict[str, Any]]:
    """Returns a small catalog of one region and of the free tier, which has no region."""
    always = PREFIXES[region]
    own = "" if region == "us-east-1" else always
    made = []
    for line in _PRODUCTS.format(own=own, always=always).split("\n")[1:-1]:
        fields = line.split("|")
        if len(fields) == 3:
            service, family, key = fields
            continue
        name, unit, prices, usage, more = fields
        attributes = {"regionCode": region, "usagetype": usage, **_attributes(f"{key}={more}")}
        made.append(product(f"{name}-{region}", service, family, unit, prices, **attributes))
    for kind, usd in _INSTANCES.items():
        others = _OTHERS.format(own=own, kind=kind).split("\n")[1:-1]
        for number, line in enumerate([f"{usd}|instanceType={kind}", *others]):
            price, _, more = line.partition("|")
            attributes = {
                "instanceType": kind,
                "regionCode": region,
                "usagetype": f"{own}BoxUsage:{kind}",
                **_attributes(f"{_USUAL},{more}"),
            }
            sku = f"{kind}-{number}-{region}"
            made.append(product(sku, "AmazonEC2", "Compute Instance", "Hrs", price, **attributes))
    return made


def _attributes(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split(","))
