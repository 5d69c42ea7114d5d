"""The stored form of a run's prices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.errors import ExperimentError
from runtime.money.prices import PRICES, prices_from_json, prices_to_json


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
