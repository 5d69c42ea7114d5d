"""``python -m runtime reconcile``, with real boto3, against a moto server."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any
from urllib.request import Request, urlopen

import pytest

from runtime.operations.reconcile import ask_bill
from tests.operations.accounts import DELETED_STACK, Account, start


def answer_of_aws(aws: Account, *answers: dict[str, Any]) -> None:
    body = json.dumps({"account_id": "123456789012", "results": list(answers)}).encode()
    with urlopen(
        Request(
            f"{aws.server.url}/moto-api/static/ce/cost-and-usage-results",
            data=body,
            method="POST",
            headers={"Content-Type": "application/json"},
        )
    ) as response:
        assert response.status == 201


def day(
    date: str, *groups: tuple[str, str, float, float, str], is_estimated: bool = False
) -> dict[str, Any]:
    return {
        "TimePeriod": {"Start": date, "End": date},
        "Total": {},
        "Estimated": is_estimated,
        "Groups": [
            {
                "Keys": [service, usage_type],
                "Metrics": {
                    "UnblendedCost": {"Amount": str(usd), "Unit": "USD"},
                    "UsageQuantity": {"Amount": str(amount), "Unit": unit},
                },
            }
            for service, usage_type, usd, amount, unit in groups
        ],
    }


COMPUTE = ("Amazon Elastic Compute Cloud - Compute", "BoxUsage:g4dn.xlarge", 0.2, 0.38, "Hrs")
FUNCTION = ("AWS Lambda", "Lambda-GB-Second", 0.03, 1800.0, "Lambda-GB-Second")


def keep_bill(aws: Account, *, ended_at: str | None = "2026-01-02T03:04:05Z") -> None:
    files = {
        "events.jsonl": b'{"time": "2026-01-01T23:50:00.000+00:00", "event": "run_started"}\n{"time": "x"}\n',
        "ledger.json": b'{"budget": {"units_per_usd": 1000, "spent": 500, "reserved": {}}}',
    }
    if ended_at:
        files["ended.json"] = json.dumps({"stop_reason": "budget", "ended_at": ended_at}).encode()
    aws.upload(aws.make_bucket(), "hopper/first/", files)


def test_the_bill_beside_what_the_run_counted(aws: Account) -> None:
    keep_bill(aws)
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK, spent_usd=0.40)
    answer_of_aws(
        aws,
        {
            "ResultsByTime": [day("2026-01-01", COMPUTE), day("2026-01-02", COMPUTE)],
            "NextPageToken": "more",
        },
        {"ResultsByTime": [day("2026-01-03", FUNCTION)]},
    )
    text = aws.run("reconcile", "hopper")
    assert (
        "hopper/first, 2026-01-01 to 2026-01-03 (UTC); Cost Explorer was asked 2 times at $0.01"
        in text
    )
    assert re.search(r"Amazon Elastic Compute Cloud - Compute +0\.4000 USD", text)
    assert re.search(r"BoxUsage:g4dn\.xlarge +0\.4000 USD +0\.7600 Hrs", text)
    assert re.search(r"AWS \(measured\) +0\.4300 USD", text)
    assert re.search(r"ours \(modelled\) +0\.4000 USD +the guard's ledger", text)
    assert re.search(r"difference +\+0\.0300 USD +\+7\.5 % of ours", text)
    assert "NOT COMPLETE" not in text and "ESTIMATED" not in text


def test_what_is_asked_of_cost_explorer(aws: Account) -> None:
    class Explorer:
        def get_cost_and_usage(self, **query: Any) -> dict[str, Any]:
            asked.append(json.loads(json.dumps(query)))
            return {"ResultsByTime": [], **({} if len(asked) > 1 else {"NextPageToken": "t"})}

    asked: list[dict[str, Any]] = []
    first = datetime.date(2026, 1, 31)
    assert ask_bill(Explorer(), "hopper", "first", first=first, last=first)["requests"] == 2
    assert asked[0] == {
        "TimePeriod": {"Start": "2026-01-31", "End": "2026-02-01"},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost", "UsageQuantity"],
        "GroupBy": [
            {"Type": "DIMENSION", "Key": "SERVICE"},
            {"Type": "DIMENSION", "Key": "USAGE_TYPE"},
        ],
        "Filter": {
            "And": [
                {
                    "Tags": {
                        "Key": "nitro:experiment",
                        "Values": ["hopper"],
                        "MatchOptions": ["EQUALS"],
                    }
                },
                {"Tags": {"Key": "nitro:run", "Values": ["first"], "MatchOptions": ["EQUALS"]}},
            ]
        },
    }
    assert asked[1] == {**asked[0], "NextPageToken": "t"}


def test_an_empty_bill_says_how_to_activate_the_tags(aws: Account) -> None:
    keep_bill(aws)
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01")]})
    text = aws.run("reconcile", "hopper")
    assert (
        "nothing that bears the tags of hopper/first; ours (modelled): $0.5000, ledger.json in the bucket"
        in text
    )
    assert (
        "aws ce update-cost-allocation-tags-status --cost-allocation-tags-status "
        "TagKey=nitro:experiment,Status=Active TagKey=nitro:run,Status=Active"
    ) in text


@pytest.mark.parametrize(
    ("ended_ago_s", "said"),
    [
        (None, "NOT COMPLETE: the run has not ended"),
        (3600, "NOT COMPLETE: the run ended less than a day ago"),
    ],
)
def test_a_bill_that_is_not_complete_is_said_to_be(
    aws: Account, ended_ago_s: float | None, said: str
) -> None:
    def now() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    before = now()
    ended = None if ended_ago_s is None else before - datetime.timedelta(seconds=ended_ago_s)
    keep_bill(aws, ended_at=None if ended is None else ended.strftime("%Y-%m-%dT%H:%M:%SZ"))
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE, is_estimated=True)]})
    text = aws.run("reconcile", "hopper")
    assert said in text and "ESTIMATED: AWS may still change" in text
    assert any(f"2026-01-01 to {today}" in text for today in {before.date(), now().date()})


def test_a_run_that_somebody_else_ended_has_ended_when_its_deployment_did(aws: Account) -> None:
    keep_bill(aws, ended_at=None)
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK)
    closed_s = datetime.datetime(2026, 1, 3, 1, tzinfo=datetime.UTC).timestamp()
    ledger.close("hopper/first", stack=DELETED_STACK, spent_usd=0.40, now_s=closed_s)
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE)]})
    text = aws.run("reconcile", "hopper")
    assert "2026-01-01 to 2026-01-04" in text and "NOT COMPLETE" not in text


def test_a_bill_of_long_ago_is_complete_but_may_be_estimated(aws: Account) -> None:
    keep_bill(aws, ended_at="2026-01-05T12:00:00Z")
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE, is_estimated=True)]})
    text = aws.run("reconcile", "hopper")
    assert "ESTIMATED: AWS may still change" in text and "NOT COMPLETE" not in text
    assert "2026-01-01 to 2026-01-06" in text, "a day more than the run: bills lag"


def test_of_several_runs_one_is_to_be_named_before_money_is_spent_on_asking(aws: Account) -> None:
    keep_bill(aws)
    (bucket,) = aws.client("s3").list_buckets()["Buckets"]
    aws.upload(bucket["Name"], "hopper/second/", {"events.jsonl": b"{}\n"})
    assert "name one with --run: first, second" in aws.run("reconcile", "hopper", code=2)
