"""Actors before the first round: reserved on disk before they start, settled to the cent, and a proof."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.experiment.loading import experiment_from_tree
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures, Patience
from runtime.fleet.flight import Flight
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.records.events import EventLog
from tests.fakes import (
    CRASHED,
    DEAF,
    ERROR,
    NEVER_RETURNS,
    NEVER_STARTED,
    OK,
    FakeCache,
    FakeFleet,
    ManualClock,
    Play,
)
from tests.helpers import cost_model

TIMEOUT_S = 30
WARM = replace(OK, submits=None, billed_s=2.5, init_s=1.0, is_metered=True)
GIB_S, REQUEST = 1.66667e-5, 0.2e-6
EXPERIMENT = experiment_from_tree(
    {
        "environment": {"id": "Hopper-v5"},
        "budget": {"usd": 1.0},
        "actor": {"provisioned": 0, "timeout_s": TIMEOUT_S, "memory_mib": 1024},
        "cache": {"kind": "redis"},
    },
    source="test",
).resolved()
BOUND_USD = (TIMEOUT_S + 10) * GIB_S + REQUEST
UNIT = 2.0**-36


class Bench:
    """A fleet that plays a script, a meter with a budget, and recorded messages and saves."""

    def __init__(
        self,
        path: Path,
        plays: list[Play] | Callable[[Mapping[str, Any], int], Play],
        usd: float = 1.0,
    ):
        self.clock, self.log = ManualClock(), []
        script = plays if callable(plays) else lambda event, nth: plays[event["slot"]]
        cache = FakeCache()
        self.fleet = FakeFleet(cache, self.clock, script, log=self.log)
        self.meter = Meter(cost_model(EXPERIMENT, traffic_bytes_max=0), Budget(usd))
        self._events_path = path / "events.jsonl"
        self.events = EventLog(self._events_path, lambda: "now")
        self.flight = Flight(
            self.fleet,
            cache,
            self.meter,
            Failures(self.events, OpenEpisodes(self.events), Patience(failures_max=1)),
            self.events,
            self._save,
            clock=self.clock,
            give_up_timeout_s=30.0,
        )

    def prewarm(self, actors: int) -> None:
        self.flight.prewarm(actors, {"run_id": "r", "round_index": 0}, TIMEOUT_S)

    def _save(self) -> None:
        self.log.append(("ledger", self.meter.spent_usd, self.meter.reserved_usd))

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self._events_path.read_text().splitlines()[-1])

    @property
    def steps(self) -> list[str]:
        return [entry[0] for entry in self.log if entry != ("abandon", ())]


def test_reserved_and_saved_before_they_start_and_settled_when_they_ended(tmp_path: Path):
    bench = Bench(tmp_path, [WARM] * 3)
    bench.prewarm(3)
    usd = 3 * (2.5 * GIB_S + REQUEST)
    assert bench.steps == ["ledger", "start", "ledger"]
    assert bench.log[0][1:] == (0.0, pytest.approx(3 * BOUND_USD, abs=3 * UNIT))
    assert bench.meter.spent_usd == pytest.approx(usd, abs=3 * UNIT)
    assert bench.log[-1] == ("ledger", bench.meter.spent_usd, 0.0)
    assert (bench.event["actors"], bench.event["usd"]) == (3, bench.meter.spent_usd)


@pytest.mark.parametrize(
    "plays", [[ERROR] * 3, [NEVER_RETURNS, ERROR, NEVER_STARTED], [DEAF, DEAF, ERROR]]
)
def test_all_that_fail_end_the_run_with_the_root_error(tmp_path: Path, plays: list[Play]):
    bench = Bench(tmp_path, plays)
    with pytest.raises(ActorsKeepFailingError, match="no actor starts: RuntimeError: broken joint"):
        bench.prewarm(3)
    assert (bench.event["failed"], bench.event["error"]) == (3, ERROR.error)
    assert bench.meter.reserved_usd == 0.0
    assert bench.steps[-1] == "ledger"


def test_as_many_start_as_the_budget_holds(tmp_path: Path):
    bench = Bench(tmp_path, [WARM, CRASHED], 2.5 * BOUND_USD)
    bench.prewarm(5)
    assert len(bench.fleet.started) == bench.event["actors"] == 2
    assert (bench.event["failed"], bench.event["error"]) == (1, CRASHED.error)
    poor = Bench(tmp_path, [], 0.5 * BOUND_USD)
    with pytest.raises(BudgetError, match="does not hold even one actor"):
        poor.prewarm(5)
    assert poor.fleet.started == []
