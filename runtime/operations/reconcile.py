"""``python -m runtime reconcile``: compares AWS' bill of a run, a day later, with the run's own count."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client
from runtime.errors import OperationError
from runtime.guard.ledger import Entry, find_ledger
from runtime.names import EXPERIMENT_TAG, RUN_TAG
from runtime.operations.kept_runs import KeptRun, spent_usd
from runtime.records import layout

REQUEST_USD = 0.01
"""Cost Explorer's price of one request."""
_PAGES_MAX = 100
_DAY_S = 86_400.0
_SMALLEST_USD = 0.00005


def find_entry(client: Client, run: KeptRun, experiment: str) -> Entry | None:
    """Returns the guard's ledger entry of a run; None if there is no guard or no entry.

    Raises:
        AccountError: AWS cannot be reached.
        LedgerError: The ledger cannot be read.
    """
    ledger = find_ledger(client)
    return ledger.get(f"{experiment}/{run.run}") if ledger else None


def run_days(
    run: KeptRun, entry: Entry | None, now_s: float
) -> tuple[datetime.date, datetime.date, float | None]:
    """Returns the first and last UTC day that AWS may bill for a run, and how long ago it ended, if it has.

    Raises:
        AccountError: The bucket cannot be read.
        OperationError: There is no record of when it began.
    """
    files = run.files()
    if not files:
        raise OperationError(f"{run.url} is empty: it is unknown when the run began")
    began_s = _moment(run.first_line(layout.EVENTS).get("time"))
    began_s = min(file.changed_at_s for file in files.values()) if began_s is None else began_s
    ended_s = _moment(run.record(layout.ENDED).get("ended_at"))
    if ended_s is None and entry is not None and entry.closed_stack and not entry.is_open:
        # Its learner did not record an end: it was silent, or a state machine ended the run.
        ended_s = entry.covered_until_s
    today = _day(now_s)
    last = today if ended_s is None else min(_day(ended_s) + datetime.timedelta(days=1), today)
    return min(_day(began_s), last), last, None if ended_s is None else now_s - ended_s


def counted(run: KeptRun, entry: Entry | None) -> tuple[float | None, str]:
    """Returns the run's own count, in dollars, and its source.

    Raises:
        AccountError: The bucket cannot be read.
    """
    if entry is not None:
        return entry.spent_usd, "the guard's ledger"
    return spent_usd(run, run.rows(layout.ROUNDS)), f"{layout.LEDGER} in the bucket"


def ask_bill(
    client: Any, experiment: str, run: str, *, first: datetime.date, last: datetime.date
) -> dict[str, Any]:
    """Returns AWS' bill for all resources with the run's tags.

    Args:
        client: Cost Explorer client.
        experiment: Name of the experiment.
        run: Name of the run.
        first: The first UTC day.
        last: The last UTC day, inclusive.

    Returns:
        ``usd``, ``services`` (dollars by service, and under ``usage`` the dollars, the amount and its unit by usage
        type), ``is_estimated`` (AWS may still change it), ``is_empty``, ``days``, ``requests``.

    Raises:
        AccountError: Cost Explorer cannot be reached.
    """
    days, requests = _days(client, experiment, run, first, last)
    services: dict[str, dict[str, Any]] = defaultdict(lambda: {"usd": 0.0, "usage": {}})
    for group in (group for day in days for group in day.get("Groups", [])):
        service, usage_type = group["Keys"]
        cost, usage = group["Metrics"]["UnblendedCost"], group["Metrics"]["UsageQuantity"]
        if cost.get("Unit", "USD") != "USD":
            raise AccountError(
                f"the bill is in {cost['Unit']}, not in US dollars: it cannot be compared"
            )
        found = services[service]["usage"].setdefault(
            usage_type, {"usd": 0.0, "amount": 0.0, "unit": ""}
        )
        services[service]["usd"] += float(cost["Amount"])
        found["usd"] += float(cost["Amount"])
        found["amount"] += float(usage["Amount"])
        found["unit"] = "" if usage.get("Unit") == "N/A" else usage.get("Unit", "")
    return {
        "usd": sum(one["usd"] for one in services.values()),
        "services": dict(sorted(services.items())),
        "is_estimated": any(day.get("Estimated") for day in days),
        "is_empty": not services,
        "days": f"{first} to {last}",
        "requests": requests,
    }


def _days(
    client: Any, experiment: str, run: str, first: datetime.date, last: datetime.date
) -> tuple[list[Mapping[str, Any]], int]:
    query = {
        "TimePeriod": {
            "Start": first.isoformat(),
            "End": (last + datetime.timedelta(days=1)).isoformat(),
        },
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost", "UsageQuantity"],
        "GroupBy": [
            {"Type": "DIMENSION", "Key": "SERVICE"},
            {"Type": "DIMENSION", "Key": "USAGE_TYPE"},
        ],
        "Filter": {
            "And": [
                {"Tags": {"Key": key, "Values": [value], "MatchOptions": ["EQUALS"]}}
                for key, value in ((EXPERIMENT_TAG, experiment), (RUN_TAG, run))
            ]
        },
    }
    days: list[Mapping[str, Any]] = []
    for requests in range(1, _PAGES_MAX + 1):
        answer = ask(lambda: client.get_cost_and_usage(**query))
        days += answer.get("ResultsByTime", [])
        if not answer.get("NextPageToken"):
            return days, requests
        query["NextPageToken"] = answer["NextPageToken"]
    raise AccountError(f"Cost Explorer has more than {_PAGES_MAX} pages for {experiment}/{run}")


def bill_lines(
    bill: Mapping[str, Any],
    *,
    run: str,
    counted_usd: float | None,
    counted_by: str,
    ended_s_ago: float | None,
) -> list[str]:
    """Returns the bill next to the run's own count, for people.

    Args:
        bill: The result of `ask_bill`.
        run: ``EXPERIMENT/RUN``.
        counted_usd: The run's own count; None if unknown.
        counted_by: Its source.
        ended_s_ago: None if the run has not ended.
    """
    lines = [
        f"{run}, {bill['days']} (UTC); Cost Explorer was asked {bill['requests']} times at ${REQUEST_USD:.2f}"
        if bill["requests"] > 1
        else f"{run}, {bill['days']} (UTC); Cost Explorer was asked once, which costs ${REQUEST_USD:.2f}",
        "",
    ]
    if bill["is_empty"]:
        return [*lines, *_empty_lines(run, counted_usd, counted_by)]
    width = max(
        map(
            len,
            [
                *bill["services"],
                *(name for one in bill["services"].values() for name in one["usage"]),
            ],
        )
    )
    for service, found in bill["services"].items():
        lines.append(f"{service.ljust(width + 2)} {_dollars(found['usd'])}")
        lines += [
            f"  {name.ljust(width)} {_dollars(one['usd'])}  {one['amount']:,.4f} {one['unit']}".rstrip()
            for name, one in _dearest(found["usage"])
        ]
    lines += ["", f"{'AWS (measured)'.ljust(width + 2)} {_dollars(bill['usd'])}"]
    if counted_usd is None:
        lines.append("ours: the run's own count is lost")
    else:
        lines += [
            f"{'ours (modelled)'.ljust(width + 2)} {_dollars(counted_usd)}  {counted_by}",
            f"{'difference'.ljust(width + 2)} {_dollars(bill['usd'] - counted_usd, sign='+')}"
            + (
                f"  {100 * (bill['usd'] - counted_usd) / counted_usd:+.1f} % of ours"
                if counted_usd
                else ""
            ),
        ]
    return [*lines, "", *_caveat_lines(bill, ended_s_ago)]


def _dearest(usage: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Returns all usage with a cost, the most expensive first."""
    return sorted(
        ((name, one) for name, one in usage.items() if abs(one["usd"]) >= _SMALLEST_USD),
        key=lambda pair: -pair[1]["usd"],
    )


def _empty_lines(run: str, counted_usd: float | None, counted_by: str) -> list[str]:
    ours = "" if counted_usd is None else f"; ours (modelled): ${counted_usd:.4f}, {counted_by}"
    return [
        f"AWS (measured): nothing that bears the tags of {run}{ours}",
        "Either the bill is younger than a day, or the tags are not cost allocation tags. To activate them (it",
        "counts from then on, takes a day to show, and works only once AWS has seen the tags):",
        "  aws ce update-cost-allocation-tags-status --cost-allocation-tags-status "
        f"TagKey={EXPERIMENT_TAG},Status=Active TagKey={RUN_TAG},Status=Active",
        "For the months before: aws ce start-cost-allocation-tag-backfill --backfill-from 2026-01-01T00:00:00Z",
    ]


def _caveat_lines(bill: Mapping[str, Any], ended_s_ago: float | None) -> list[str]:
    lines = []
    if ended_s_ago is None:
        lines.append(
            "NOT COMPLETE: the run has not ended, as far as the bucket tells; the bill follows it by a day"
        )
    elif ended_s_ago < _DAY_S:
        lines.append("NOT COMPLETE: the run ended less than a day ago; AWS' bill follows by a day")
    if bill["is_estimated"]:
        lines.append("ESTIMATED: AWS may still change these numbers, until it closes the month")
    return [
        *lines,
        "AWS counts only what bears tags: no requests to the bucket, no metrics, little data transfer.",
        "Ours is at list prices: free tiers, credits, spot prices and savings plans make the bill smaller.",
    ]


def _dollars(usd: float, sign: str = "") -> str:
    return f"{f'{usd:{sign},.4f}':>12} USD"


def _day(at_s: float) -> datetime.date:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).date()


def _moment(text: Any) -> float | None:
    """Returns an ISO 8601 time in seconds since 1970; None if it is not one."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None
