"""The stored form of a run's prices."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ExperimentError
from runtime.money.prices import PRICES, LambdaPrices, PriceTable, prices_from_json, prices_to_json

USD = st.floats(min_value=0, max_value=1e6, exclude_min=True)
TEXT = st.text('aZ9-_ .\u00e9\u65e5\U0001f40d"\\', min_size=1)
TABLES = st.builds(
    PriceTable,
    region=TEXT,
    as_of=st.dates(min_value=datetime.date(1000, 1, 1)).map(str),
    source=TEXT,
    functions=st.dictionaries(
        st.sampled_from(["x86_64", "arm64"]),
        st.builds(
            LambdaPrices,
            on_demand_usd=USD,
            provisioned_capacity_usd=USD,
            provisioned_duration_usd=USD,
        ),
        min_size=1,
    ),
    request_usd=USD,
    instance_hour_usd=st.dictionaries(TEXT, USD),
    serverless_cache_gib_hour_usd=USD,
    serverless_cache_gib_min=USD,
    serverless_cache_ecpu_usd=USD,
    volume_gib_month_usd=USD,
    public_ipv4_hour_usd=USD,
    put_usd=USD,
    skus=st.dictionaries(TEXT, TEXT),
)


def refusal(**changes: Any) -> str:
    tree = json.loads(prices_to_json(PRICES)) | changes
    data = {name: value for name, value in tree.items() if value != "absent"}
    with pytest.raises(ExperimentError) as error:
        prices_from_json(json.dumps(data).encode())
    return str(error.value)


@given(TABLES)
def test_a_table_comes_back_as_it_was(table: PriceTable) -> None:
    assert prices_from_json(prices_to_json(table)) == table


@pytest.mark.parametrize("name", [name for name, usd in PRICES if isinstance(usd, float)])
@pytest.mark.parametrize("value", [0, -0.1, float("nan"), 1e308, 10**400, True, None, "1", []])
def test_a_price_is_a_number_above_0_that_can_be_reckoned_with(name: str, value: Any) -> None:
    text = refusal(**{name: value})
    assert text.startswith(f"prices: {name} = ") or text.endswith("is not finite, or too large")
    assert len(text) < 200


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"put_usd": "absent"}, "put_usd: Field required"),
        ({"get_usd": 1.0}, "get_usd = 1.0: Extra inputs are not permitted"),
        (
            {"functions": {"riscv": {}}},
            "functions.riscv.[key] = 'riscv': String should match pattern '^(x86_64|arm64)$'",
        ),
        ({"functions": {"arm64": {}}}, "functions.arm64.on_demand_usd: Field required"),
        ({"functions": {}}, "functions = {}: Dictionary should have at least 1 item"),
        ({"instance_hour_usd": {"a": 0}}, "instance_hour_usd.a = 0: Input should be greater than"),
        ({"skus": {"put_usd": 1}}, "skus.put_usd = 1: Input should be a valid string"),
        ({"region": "\x1b[2J"}, "region = '\\x1b[2J': String should match"),
        ({"as_of": "2026-99-99"}, "as_of = '2026-99-99': String should match"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_named(changes: dict[str, Any], said: str) -> None:
    assert refusal(**changes).startswith(f"prices: {said}")


@pytest.mark.parametrize("data", [b"", b"\xff", prices_to_json(PRICES)[:-1], b"[]"])
def test_what_is_no_mapping_in_json_is_refused(data: bytes) -> None:
    with pytest.raises(ExperimentError, match="^prices: "):
        prices_from_json(data)


def test_a_table_is_read_without_large_libraries() -> None:
    """The app, the runner and every reader of a run's record import it."""
    code = (
        "import sys\nimport runtime.money.prices\n"
        "print({'boto3', 'botocore', 'torch', 'numpy', 'yaml'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
