"""A deployed run's events about its guard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from runtime.aws.learner.records import AwsRecords
from runtime.aws.ledger import Entry
from runtime.experiment.loading import experiment_from_tree
from runtime.money.meter import Meter
from runtime.records.rows import RoundRow

NOW_S = 1e9


def test_a_silent_guard_is_an_event_and_so_is_one_that_looks_again() -> None:
    experiment = experiment_from_tree(
        {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}, source="test"
    ).resolved(is_deployed=True)
    heartbeat: Any = SimpleNamespace(guard_problem="")
    events: list[tuple[str, dict[str, str]]] = []
    quiet = SimpleNamespace(round_finished=lambda *_: None)
    parts: Any = {
        "results": quiet,
        "announce": lambda: True,
        "metrics": quiet,
        "events": SimpleNamespace(append=lambda kind, **fields: events.append((kind, fields))),
    }
    records, row = (
        AwsRecords(
            experiment, Entry("a/b"), heartbeat, cast("Meter", None), now=lambda: NOW_S, **parts
        ),
        cast("RoundRow", None),
    )
    for problem in ("", "it is silent", "it is silent still", "", ""):
        heartbeat.guard_problem = problem
        records.on_round_end(row)
    assert events == [("guard_silent", {"error": "it is silent"}), ("guard_looks", {})]
