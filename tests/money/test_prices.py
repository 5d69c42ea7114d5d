"""The stored form of a run's prices, and those of a region without a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.errors import ExperimentError
from runtime.money.prices import PRICES, PriceTable, elsewhere, prices_from_json, prices_to_json


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"put_usd": "absent"}, "put_usd: Field required"),
        ({"get_usd": 1.0}, "get_usd = 1.0: Extra inputs are not permitted"),
        ({"instance_hour_usd": {"a": 0}}, "instance_hour_usd.a = 0: Input should be greater than"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_named(changes: dict[str, Any], said: str) -> None:
    tree = json.loads(prices_to_json(PRICES)) | changes
    data = {name: value for name, value in tree.items() if value != "absent"}
    with pytest.raises(ExperimentError, match=f"^prices: {said}"):
        prices_from_json(json.dumps(data).encode())


def test_where_there_is_no_table_every_price_is_twice_that_of_us_east_1() -> None:
    assert elsewhere(PRICES, PRICES.region) == PRICES
    found = elsewhere(PRICES, "sa-east-1")
    assert found.region == "sa-east-1" and "times 2" in found.source

    def prices(table: PriceTable) -> list[float]:
        functions = [usd for one in table.functions.values() for usd in vars(one).values()]
        single = [
            getattr(table, name)
            for name in vars(table)
            if name.endswith("_usd") and name != "instance_hour_usd"
        ]
        return [*functions, *single, *table.instance_hour_usd.values()]

    assert prices(found) == [2 * usd for usd in prices(PRICES)]
    assert len(prices(PRICES)) == 12 + len(PRICES.instance_hour_usd)
    assert found.serverless_cache_gib_min == PRICES.serverless_cache_gib_min
