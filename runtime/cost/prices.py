"""AWS list prices. Third-party copies rot: every table carries its region and the day it was taken."""

from __future__ import annotations

import datetime
import json
import textwrap
from collections.abc import Collection
from dataclasses import asdict, fields, replace
from typing import Any

from runtime.errors import ExperimentError
from runtime.ports.money import LambdaPrices, PriceTable
from runtime.records.files import parse_json

ARCHITECTURES = ("x86_64", "arm64")
CACHE_NODE_TYPE = "cache.t4g.small"
HOURS_PER_MONTH = 730
"""AWS' own."""
ELSEWHERE = 2.0
"""What a price of us-east-1 is multiplied by for a region whose own is not known: more than any ratio that we know.

The highest are those of sa-east-1: a GiB of gp3 at $0.152 instead of $0.08 (1.9), a g4dn.xlarge at $0.894 instead of
$0.526 (1.7). Lambda is dearest in ap-east-1, with a ratio of less than 1.4. Too high a price ends a run early; too low
a one would exceed the budget.
"""
_USD_MAX = 1e6
"""Sums of higher prices may not be finite."""
_SHOWN_CHARACTERS = 200


_NUMBERS = {one.name for one in fields(PriceTable) if one.type == "float"}


def elsewhere(prices: PriceTable, region: str) -> PriceTable:
    """These prices, as they are taken for another region: `ELSEWHERE` times as high."""
    if region == prices.region:
        return prices

    def dearer(found: Any) -> dict[str, float]:
        return {name: ELSEWHERE * usd for name, usd in found.items()}

    scaled = _NUMBERS - {"serverless_cache_gib_min"}
    numbers: dict[str, Any] = dearer({name: getattr(prices, name) for name in scaled})
    functions = {name: LambdaPrices(**dearer(vars(found))) for name, found in prices.functions.items()}
    return replace(prices, region=region, source=f"{prices.source} of {prices.region} times {ELSEWHERE:g}", skus={},
                   functions=functions, instance_hour_usd=dearer(prices.instance_hour_usd), **numbers)


def prices_to_json(prices: PriceTable) -> bytes:
    return json.dumps(asdict(prices), indent=2).encode()


def prices_from_json(data: bytes) -> PriceTable:
    """What `prices_to_json` made, exactly.

    Raises:
        ExperimentError: It is no price table; the text names the field, its value and what is allowed.
    """
    try:
        tree = parse_json(data, object_pairs_hook=_mapping)
    except ValueError as error:
        raise ExperimentError(f"prices: is not JSON: {error}") from None
    tree = _keys("prices", tree, PriceTable)
    texts = {name: _text(f"prices.{name}", tree[name]) for name in ("region", "source")}
    functions = {name: _lambda_prices(f"prices.functions.{name}", tree["functions"][name])
                 for name in _names("prices.functions", tree["functions"], allowed=ARCHITECTURES)}
    instances = {name: _usd(f"prices.instance_hour_usd.{name}", tree["instance_hour_usd"][name])
                 for name in _names("prices.instance_hour_usd", tree["instance_hour_usd"])}
    skus = {name: _text(f"prices.skus.{name}", tree["skus"][name]) for name in _names("prices.skus", tree["skus"])}
    numbers = {name: _usd(f"prices.{name}", value) for name, value in tree.items() if name in _NUMBERS}
    found: dict[str, Any] = {"functions": functions, "instance_hour_usd": instances, "skus": skus,
                             "as_of": _day("prices.as_of", tree["as_of"]), **texts, **numbers}
    return PriceTable(**found)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a mapping of a JSON object's keys and values.

    Raises:
        ValueError: A key stands there twice.
    """
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError(f"a key stands there twice: {[key for key, _ in pairs][:20]}")
    return tree


def _keys(name: str, tree: Any, made: type) -> dict[str, Any]:
    """Checks that a mapping has exactly a class's fields.

    Raises:
        ExperimentError: It is no mapping of exactly this class' fields.
    """
    known = [one.name for one in fields(made)]
    found = _names(name, tree, allowed=known)
    if missing := [key for key in known if key not in found]:
        raise ExperimentError(f"{name}: {missing} is missing; allowed: {known}")
    mapping: dict[str, Any] = tree
    return mapping


def _names(name: str, tree: Any, *, allowed: Collection[str] = ()) -> Collection[str]:
    """Checks a mapping's keys.

    Raises:
        ExperimentError: It is no mapping; or, if names are allowed, it is empty or has others.
    """
    if not isinstance(tree, dict) or (allowed and not tree):
        raise ExperimentError(f"{name} = {_shown(tree)} is not allowed; allowed: a mapping"
                              f"{f' of {list(allowed)}' if allowed else ''}")
    if unknown := [key for key in tree if allowed and key not in allowed]:
        raise ExperimentError(f"{name}: {_shown(unknown)} is not known; allowed: {list(allowed)}")
    return tree.keys()


def _lambda_prices(name: str, tree: Any) -> LambdaPrices:
    return LambdaPrices(**{key: _usd(f"{name}.{key}", usd) for key, usd in _keys(name, tree, LambdaPrices).items()})


def _usd(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _USD_MAX:
        raise ExperimentError(f"{name} = {_shown(value)} is not allowed; allowed: a number above 0, up to {_USD_MAX:g}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ExperimentError(f"{name} = {_shown(value)} is not allowed; allowed: a text")
    return value


def _day(name: str, value: Any) -> str:
    try:
        if isinstance(value, str) and datetime.date.fromisoformat(value).isoformat() == value:
            return value
    except (TypeError, ValueError):
        pass
    raise ExperimentError(f"{name} = {_shown(value)} is not allowed; allowed: a day such as 2026-11-20")


def _shown(value: Any) -> str:
    return textwrap.shorten(repr(value), _SHOWN_CHARACTERS, placeholder="…")


PRICES = PriceTable(
    region="us-east-1",
    as_of="2026-11-20",
    source="the dated table",
    functions={
        "x86_64": LambdaPrices(1.66667e-5, 4.1667e-6, 9.7222e-6),
        "arm64": LambdaPrices(1.33334e-5, 3.3334e-6, 7.7778e-6),
    },
    request_usd=0.20e-6,
    instance_hour_usd={
        "g4dn.xlarge": 0.526, "g5.xlarge": 1.006, "g6.xlarge": 0.8048,
        "c7i.large": 0.08925, "c7i.xlarge": 0.1785, "c7i.2xlarge": 0.357, "c7i.4xlarge": 0.714,
        "c7i.8xlarge": 1.428, "c7i.12xlarge": 2.142, "c7i.16xlarge": 2.856, "c7i.24xlarge": 4.284,
        "c7i.48xlarge": 8.568,
        "c7g.large": 0.0725, "c7g.xlarge": 0.145, "c7g.2xlarge": 0.29, "c7g.4xlarge": 0.58,
        "c8g.large": 0.07976, "c8g.xlarge": 0.15952, "c8g.2xlarge": 0.31904, "c8g.4xlarge": 0.63808,
        "c8g.8xlarge": 1.27616, "c8g.12xlarge": 1.91424, "c8g.16xlarge": 2.55232, "c8g.24xlarge": 3.82848,
        "c8g.48xlarge": 7.65696,
        "m7i.large": 0.1008, "m7i.xlarge": 0.2016, "m7g.large": 0.0816, "m7g.xlarge": 0.1632,
        "t3.micro": 0.0104, "t3.small": 0.0208, "t4g.micro": 0.0084, "t4g.small": 0.0168,
        "c7i-flex.large": 0.08479, "m7i-flex.large": 0.09576,
        "c5.4xlarge": 0.68, "c5.9xlarge": 1.53, "c5.24xlarge": 4.08,
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
"""us-east-1. c7i and c8g from 8xlarge on are in proportion to their size. p3 is retired and kept for the paper's
settings; the cache node is a cache.t4g.small at the price of Redis, above Valkey's.

AWS' Free plan starts t3 and t4g (2 vCPUs; micro 1 GiB, small 2 GiB; here without CPU credits beyond those that they
earn), c7i-flex.large (2 vCPUs, 4 GiB) and m7i-flex.large (2 vCPUs, 8 GiB); flex is 5 % below c7i and m7i.
"""
