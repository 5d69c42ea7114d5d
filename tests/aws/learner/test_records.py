"""What a deployed run's records cost by the request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.aws.learner.records import AwsRecords
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.prices import PRICES
from runtime.money.work import ACTOR, Work
from runtime.records.rows import RoundRow
from tests.helpers import cost_model

NOW_S = 1e9


def test_each_upload_of_the_ledger_is_in_its_rounds_bill() -> None:
    experiment = experiment_from_tree(
        {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}, source="test"
    ).resolved(is_deployed=True)
    meter = Meter(
        cost_model(experiment, traffic_bytes_max=0, is_deployed=True),
        Budget(1.0),
        clock=BillingClock(NOW_S, now=lambda: NOW_S),
    )
    uploads: list[float] = []
    written: list[bool] = []

    def save(ledger: bytes, *, promised_usd: float, is_idle: bool) -> bool:
        """Uploads more than was promised before, as `ResultsBucket` does."""
        is_new = promised_usd > max(uploads, default=0.0)
        uploads.extend([promised_usd] * is_new)
        return is_new

    parts: Any = {
        "results": SimpleNamespace(save_ledger=save),
        "announce": lambda: True,
        "metrics": None,
        "heartbeat": SimpleNamespace(
            promise=lambda _, *, is_written, due_s: written.append(is_written)
        ),
        "events": None,
    }
    records = AwsRecords(experiment, meter=meter, spent_usd=0.0, now=lambda: NOW_S, **parts)
    assert meter.open_round(2, smallest=1) == 2
    records.ledger_changed(b"")
    assert meter.reserve([Work(ACTOR, 2)]) == 1
    records.ledger_changed(b"")
    for slot in range(3):
        meter.cancel(Work(ACTOR, slot))
    records.ledger_changed(b"")
    assert written == [True, True, False]
    usd = meter.close_round(0.0).round_cost_usd
    assert usd == pytest.approx(len(uploads) * 1.25 * PRICES.put_usd)
    assert meter.spent_usd == pytest.approx(usd)


def test_a_silent_guard_is_an_event_and_so_is_one_that_looks_again() -> None:
    experiment = experiment_from_tree(
        {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}, source="test"
    ).resolved(is_deployed=True)
    heartbeat = SimpleNamespace(guard_problem="")
    events: list[tuple[str, dict[str, str]]] = []
    quiet = SimpleNamespace(round_finished=lambda *_: None)
    parts: Any = {
        "results": quiet,
        "announce": lambda: True,
        "metrics": quiet,
        "heartbeat": heartbeat,
        "meter": None,
        "events": SimpleNamespace(append=lambda kind, **fields: events.append((kind, fields))),
    }
    records, row = (
        AwsRecords(experiment, spent_usd=0.0, now=lambda: NOW_S, **parts),
        cast("RoundRow", None),
    )
    for problem in ("", "it is silent", "it is silent still", "", ""):
        heartbeat.guard_problem = problem
        records.on_round_end(row)
    assert events == [("guard_silent", {"error": "it is silent"}), ("guard_looks", {})]
