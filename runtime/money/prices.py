"""AWS list prices. Every table has its region and date, because copied prices become outdated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from runtime.errors import ExperimentError
from runtime.experiment.section import Field, Section, read_tree

HOURS_PER_MONTH = 730
"""AWS' own number."""
ELSEWHERE = 2.0
"""Factor on us-east-1's prices for regions without a table: higher than any known ratio.

The highest known ratios are in sa-east-1: a GiB of gp3 at $0.152 instead of $0.08 (1.9), a g4dn.xlarge at $0.894
instead of $0.526 (1.7). Lambda costs the most in ap-east-1, with a ratio below 1.4. A price that is too high ends a run
early; one that is too low would exceed the budget.
"""

READ_SHARE = 0.08
"""Price of a read relative to a write: S3's price list has $0.0004 and $0.005 per thousand."""
ITEM_KIB_SHARE = 0.125
"""Price of a write of a KiB to the ledger relative to a write to the bucket: DynamoDB's unit, $0.625 per million."""

TRANSITION_USD = 3.75e-5
"""One step of a state machine in the most expensive region on Step Functions' price page; us-east-1 charges 2.5e-5."""
OUT_BYTE_USD, OUT_ELSEWHERE_BYTE_USD = 0.09e-9, 0.154e-9
"""Price of a byte that leaves AWS, after the account's first 100 GB a month: in the regions of North America and
Europe, and in the most expensive region. Lambda's answers are billed at the rates of EC2's page."""
OUT_REGIONS = ("us-east-", "us-west-", "ca-", "eu-")
WATCHED_USD_PER_HOUR = (10 * 0.30 + 3.6 * 0.10) / HOURS_PER_MONTH + 60 * 1e-5
"""Hourly cost of a deployment's CloudWatch metrics, of its images with CUDA, and of a request with metrics
each minute. List prices of us-east-1, 2026-11-20. The ten metrics that are free in each account are not
deducted, since others may use them."""
POOL_USD_PER_HOUR = 0.10 / HOURS_PER_MONTH + 120 * 1.25e-6
"""Hourly cost of a pool in the user's own process: the actor image, at most 1 GB, and a DynamoDB request each half
minute for the heartbeat. A pool has no metrics or dashboard, and its files are on the user's disk."""

Price = Annotated[float, Field(gt=0, le=1e6)]
"""A price. Sums of higher prices may not be finite."""
_Text = Annotated[str, Field(pattern=r"^[^\p{C}\p{Zl}\p{Zp}]+$")]
"""Printable text."""


class LambdaPrices(Section):
    """Prices for one processor architecture, US dollars per GiB-second."""

    on_demand_usd: Price
    provisioned_capacity_usd: Price
    provisioned_duration_usd: Price


class PriceTable(Section):
    """List prices in US dollars of one region on one day.

    Attributes:
        as_of: The day, such as 2026-11-20.
        source: Their source, for users.
        functions: Prices by processor architecture; one may be missing.
        skus: For each price, the SKU of AWS's product and the day since which it is valid; empty if not looked up.
    """

    region: _Text
    as_of: Annotated[str, Field(pattern="^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
    source: _Text
    functions: Annotated[
        Mapping[Annotated[str, Field(pattern="^(x86_64|arm64)$")], LambdaPrices],
        Field(min_length=1),
    ]
    request_usd: Price
    instance_hour_usd: Mapping[str, Price]
    serverless_cache_gib_hour_usd: Price
    serverless_cache_gib_min: Price
    serverless_cache_ecpu_usd: Price
    volume_gib_month_usd: Price
    public_ipv4_hour_usd: Price
    put_usd: Price
    skus: Mapping[str, _Text] = {}


def elsewhere(prices: PriceTable, region: str) -> PriceTable:
    """Returns these prices for another region: `ELSEWHERE` times as high."""
    if region == prices.region:
        return prices

    return PriceTable.model_validate(
        json.loads(prices.model_dump_json(), parse_float=lambda price: ELSEWHERE * float(price))
        | {
            "region": region,
            "source": f"{prices.source} of {prices.region} times {ELSEWHERE:g}",
            "skus": {},
            "serverless_cache_gib_min": prices.serverless_cache_gib_min,
        }
    )


def prices_to_json(prices: PriceTable) -> bytes:
    return prices.model_dump_json(indent=2).encode()


def prices_from_json(data: bytes) -> PriceTable:
    """Reads the exact output of `prices_to_json`.

    Raises:
        ExperimentError: It is not a price table; the text names the field, its value and the problem.
    """
    try:
        return read_tree(PriceTable, json.loads(data))
    except ValueError as error:
        raise ExperimentError(f"prices: {error}") from None


PRICES = PriceTable(
    region="us-east-1",
    as_of="2026-11-20",
    source="the dated table",
    functions={
        "x86_64": LambdaPrices(
            on_demand_usd=1.66667e-5,
            provisioned_capacity_usd=4.1667e-6,
            provisioned_duration_usd=9.7222e-6,
        ),
        "arm64": LambdaPrices(
            on_demand_usd=1.33334e-5,
            provisioned_capacity_usd=3.3334e-6,
            provisioned_duration_usd=7.7778e-6,
        ),
    },
    request_usd=0.20e-6,
    instance_hour_usd={
        "g4dn.xlarge": 0.526,
        "g4dn.2xlarge": 0.752,
        "g4dn.4xlarge": 1.204,
        "g4dn.8xlarge": 2.176,
        "g4dn.12xlarge": 3.912,
        "g4dn.16xlarge": 4.352,
        "g5.xlarge": 1.006,
        "g5.2xlarge": 1.212,
        "g5.4xlarge": 1.624,
        "g5.8xlarge": 2.448,
        "g5.12xlarge": 5.672,
        "g5.16xlarge": 4.096,
        "g5.24xlarge": 8.144,
        "g5.48xlarge": 16.288,
        "g6.xlarge": 0.8048,
        "g6.2xlarge": 0.9776,
        "g6.4xlarge": 1.3232,
        "g6.8xlarge": 2.0144,
        "g6.12xlarge": 4.6016,
        "g6.16xlarge": 3.3968,
        "g6.24xlarge": 6.6752,
        "g6.48xlarge": 13.3504,
        "p4d.24xlarge": 21.957642,
        "c7i.large": 0.08925,
        "c7i.xlarge": 0.1785,
        "c7i.2xlarge": 0.357,
        "c7i.4xlarge": 0.714,
        "c7i.8xlarge": 1.428,
        "c7i.12xlarge": 2.142,
        "c7i.16xlarge": 2.856,
        "c7i.24xlarge": 4.284,
        "c7i.48xlarge": 8.568,
        "c7a.large": 0.10264,
        "c7a.xlarge": 0.20528,
        "c7a.2xlarge": 0.41056,
        "c7a.4xlarge": 0.82112,
        "c7a.8xlarge": 1.64224,
        "c7a.12xlarge": 2.46336,
        "c7a.16xlarge": 3.28448,
        "c7a.24xlarge": 4.92672,
        "c7a.32xlarge": 6.56896,
        "c7a.48xlarge": 9.85344,
        "c7g.large": 0.0725,
        "c7g.xlarge": 0.145,
        "c7g.2xlarge": 0.29,
        "c7g.4xlarge": 0.58,
        "c7g.8xlarge": 1.16,
        "c7g.12xlarge": 1.74,
        "c7g.16xlarge": 2.32,
        "c8g.large": 0.07976,
        "c8g.xlarge": 0.15952,
        "c8g.2xlarge": 0.31904,
        "c8g.4xlarge": 0.63808,
        "c8g.8xlarge": 1.27616,
        "c8g.12xlarge": 1.91424,
        "c8g.16xlarge": 2.55232,
        "c8g.24xlarge": 3.82848,
        "c8g.48xlarge": 7.65696,
        "m7i.large": 0.1008,
        "m7i.xlarge": 0.2016,
        "m7i.8xlarge": 1.6128,
        "m7i.16xlarge": 3.2256,
        "m7i.24xlarge": 4.8384,
        "m7i.48xlarge": 9.6768,
        "m7g.large": 0.0816,
        "m7g.xlarge": 0.1632,
        "m7g.8xlarge": 1.3056,
        "m7g.16xlarge": 2.6112,
        "t3.micro": 0.0104,
        "t3.small": 0.0208,
        "t4g.micro": 0.0084,
        "t4g.small": 0.0168,
        "c7i-flex.large": 0.08479,
        "m7i-flex.large": 0.09576,
        "c5.4xlarge": 0.68,
        "c5.9xlarge": 1.53,
        "c5.24xlarge": 4.08,
        "p3.2xlarge": 3.06,
        "p3.8xlarge": 12.24,
    },
    serverless_cache_gib_hour_usd=0.084,
    serverless_cache_gib_min=0.1,
    serverless_cache_ecpu_usd=0.0023e-6,
    volume_gib_month_usd=0.08,
    public_ipv4_hour_usd=0.005,
    put_usd=0.005e-3,
)
"""us-east-1; instances with Linux, on demand. p3 is retired and kept for the paper's settings.

AWS was not asked on that day for c7a, p4d, all but the smallest of g4dn, g5 and g6, and the types of c7g, c7i, c8g, m7g
and m7i with 32 or more vCPUs. Their prices are from the Price List API on 2026-01-19, as kept by the Karpenter project
(github.com/aws/karpenter-provider-aws, pkg/providers/pricing/zz_generated.pricing_aws.go). p4d has been cheaper by a
third since June 2025; price lists of 2026-07-28 and 2026-09-25 still have the same price.

AWS' Free plan starts t3 and t4g (2 vCPUs; micro 1 GiB, small 2 GiB; here with earned CPU credits only), c7i-flex.large
(2 vCPUs, 4 GiB) and m7i-flex.large (2 vCPUs, 8 GiB); flex is 5 % below c7i and m7i.
"""
