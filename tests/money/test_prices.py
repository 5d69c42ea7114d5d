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
from runtime.money.prices import PRICES, prices_from_json, prices_to_json
from runtime.money.work import LambdaPrices, PriceTable

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
NUMBERS = (
    "request_usd",
    "serverless_cache_gib_hour_usd",
    "serverless_cache_gib_min",
    "serverless_cache_ecpu_usd",
    "volume_gib_month_usd",
    "public_ipv4_hour_usd",
    "put_usd",
)


def tree(**changes: Any) -> dict[str, Any]:
    return (
        json.loads(prices_to_json(PRICES)) | {"skus": {"put_usd": "ABC since 2026-11-01"}} | changes
    )


def refusal(data: Any) -> str:
    with pytest.raises(ExperimentError) as error:
        prices_from_json(data if isinstance(data, bytes) else json.dumps(data).encode())
    return str(error.value)


@given(TABLES)
def test_a_table_comes_back_as_it_was(table: PriceTable) -> None:
    assert prices_from_json(prices_to_json(table)) == table


def test_the_dated_table_comes_back_as_it_was() -> None:
    assert prices_from_json(prices_to_json(PRICES)) == PRICES
    assert (PRICES.source, PRICES.skus) == ("the dated table", {})


def test_a_whole_number_is_a_price() -> None:
    read = prices_from_json(json.dumps(tree(put_usd=2)).encode())
    assert isinstance(read.put_usd, float)
    assert read.put_usd == 2.0


def test_all_numbers_are_checked() -> None:
    assert {name for name, value in vars(PRICES).items() if isinstance(value, float)} == set(
        NUMBERS
    )


@pytest.mark.parametrize(
    "value",
    [0, -0.1, float("nan"), float("inf"), 1e308, 10**400, True, None, "1", [], {}],
    ids=lambda value: repr(value)[:9],
)
@pytest.mark.parametrize(
    "name", [*NUMBERS, "instance_hour_usd.g5.xlarge", "functions.arm64.on_demand_usd"]
)
def test_a_price_is_a_number_above_0_that_can_be_reckoned_with(name: str, value: Any) -> None:
    place, _, key = name.partition(".")
    changed = tree()
    match place:
        case "functions":
            changed["functions"]["arm64"]["on_demand_usd"] = value
        case "instance_hour_usd":
            changed["instance_hour_usd"][key] = value
        case _:
            changed[name] = value
    text = refusal(changed)
    assert text.startswith(f"prices: {name} = ") or text.endswith("is not finite, or too large")
    assert len(text) < 200


@pytest.mark.parametrize(
    "name", [*NUMBERS, "region", "as_of", "source", "functions", "instance_hour_usd"]
)
def test_what_is_missing_is_named(name: str) -> None:
    changed = tree()
    del changed[name]
    assert refusal(changed) == f"prices: {name}: Field required"


def test_a_missing_price_of_a_function_is_named() -> None:
    changed = tree()
    del changed["functions"]["arm64"]["provisioned_duration_usd"]
    assert refusal(changed) == "prices: functions.arm64.provisioned_duration_usd: Field required"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"get_usd": 1.0}, "get_usd = 1.0: Extra inputs are not permitted"),
        (
            {"functions": {"riscv": {}}},
            "functions.riscv.[key] = 'riscv': String should match pattern '^(x86_64|arm64)$'",
        ),
        ({"functions": {}}, "functions = {}: Dictionary should have at least 1 item"),
        ({"functions": []}, "functions = []: Input should be a valid dictionary"),
        ({"functions": {"arm64": 1}}, "functions.arm64 = 1: Input should be a valid dictionary"),
        (
            {"instance_hour_usd": [1.0]},
            "instance_hour_usd = [1.0]: Input should be a valid dictionary",
        ),
        ({"skus": None}, "skus = None: Input should be a valid dictionary"),
        ({"skus": {"put_usd": 1}}, "skus.put_usd = 1: Input should be a valid string"),
        ({"region": ""}, "region = '': String should match"),
        ({"source": "\ud800"}, "source = '\\ud800': Input should be a valid string"),
        ({"region": "\x1b[2J"}, "region = '\\x1b[2J': String should match"),
        ({"source": 5}, "source = 5: Input should be a valid string"),
        ({"as_of": "yesterday"}, "as_of = 'yesterday': String should match"),
        ({"as_of": "20261120"}, "as_of = '20261120': String should match"),
        ({"as_of": "2026-99-99"}, "as_of = '2026-99-99': String should match"),
        ({"as_of": "２０２６-11-20"}, "as_of = '２０２６-11-20': String should match"),
        ({"as_of": 20261120}, "as_of = 20261120: Input should be a valid string"),
    ],
    ids=str,
)
def test_what_is_not_allowed_is_named(changes: dict[str, Any], said: str) -> None:
    assert refusal(tree(**changes)).startswith(f"prices: {said}")


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", prices_to_json(PRICES)[:-1]],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    assert refusal(data).startswith("prices: ")


@pytest.mark.parametrize("key", ["put_usd", "region", "arm64", "c7i.xlarge"])
def test_what_has_two_prices_is_refused(key: str) -> None:
    """Python's reader keeps the last duplicate, so it would be unclear which one bounds the budget."""
    text = json.dumps(tree())
    assert f'"{key}": ' in text
    twice = text.replace(f'"{key}": ', f'"{key}": 1e-9, "{key}": ', 1)
    assert refusal(twice.encode()) == f"prices: duplicate key: {key!r}"


@pytest.mark.parametrize("data", [[], None, 5, "prices"], ids=str)
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    assert "Input should be a valid dictionary" in refusal(data)


def test_a_table_is_read_without_large_libraries() -> None:
    """The app, the runner and every reader of a run's record import it."""
    code = (
        "import sys\nfrom runtime.money.prices import PRICES, prices_from_json, prices_to_json\n"
        "prices_from_json(prices_to_json(PRICES))\n"
        "print({'boto3', 'botocore', 'torch', 'numpy', 'yaml'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
