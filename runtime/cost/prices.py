"""AWS list prices. Third-party copies rot: every table carries its region and the day it was taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LambdaPrices:
    """Of one processor architecture, US dollars per GiB-second."""

    on_demand_usd: float
    provisioned_capacity_usd: float
    provisioned_duration_usd: float


@dataclass(frozen=True)
class PriceTable:
    """List prices in US dollars of one region on one day."""

    region: str
    as_of: str
    functions: Mapping[str, LambdaPrices]
    request_usd: float
    instance_hour_usd: Mapping[str, float]
    serverless_cache_gib_hour_usd: float
    serverless_cache_gib_min: float
    serverless_cache_ecpu_usd: float
    cache_node_hour_usd: float
    volume_gib_month_usd: float
    public_ipv4_hour_usd: float
    put_usd: float


PRICES = PriceTable(
    region="us-east-1",
    as_of="2026-11-20",
    functions={
        "x86_64": LambdaPrices(1.66667e-5, 4.1667e-6, 9.7222e-6),
        "arm64": LambdaPrices(1.33334e-5, 3.3334e-6, 7.7778e-6),
    },
    request_usd=0.20e-6,
    instance_hour_usd={
        "g4dn.xlarge": 0.526, "g5.xlarge": 1.006, "g6.xlarge": 0.8048,
        "c5.4xlarge": 0.68, "c5.9xlarge": 1.53, "c5.24xlarge": 4.08, "c7i.4xlarge": 0.714, "c7g.4xlarge": 0.58,
        "p3.2xlarge": 3.06, "p3.8xlarge": 12.24,
    },
    serverless_cache_gib_hour_usd=0.084,
    serverless_cache_gib_min=0.1,
    serverless_cache_ecpu_usd=0.0023e-6,
    cache_node_hour_usd=0.032,
    volume_gib_month_usd=0.08,
    public_ipv4_hour_usd=0.005,
    put_usd=0.005e-3,
)
"""us-east-1. p3 is retired and kept for the paper's settings; the cache node is a cache.t4g.small at the
price of Redis, above Valkey's."""
