"""A round loop on fakes, and what must hold whenever it runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from runtime.fleet.failures import Patience
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.records.checkpoint import Checkpoint
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import RoundView
from runtime.training.evaluations import BestPolicy
from tests.fakes import (
    FakeCache,
    FakeDetector,
    FakeEvaluator,
    FakeFleet,
    FakeLearner,
    FakeRun,
    ManualClock,
    Play,
    TimedFleet,
)
from tests.fleet.parts import EVENT, SpyMeter, make_experiment
from tests.helpers import cost_model

Script = Callable[[Mapping[str, Any], int], Play]
DEFAULT_PATIENCE = Patience()


@dataclass
class Records:
    """What survives a process: its directory, or a bucket, which receives a ledger only if that covers more."""

    is_bucket: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    ledger: dict[str, Any] = field(default_factory=dict)
    most_usd: float = 0.0


class Rig:
    """One process's loop. Money is promised on disk before it is at stake, and writes are shielded."""

    def __init__(
        self,
        script: Script | Mapping[tuple[int, int], Play] | None = None,
        *,
        make_fleet: type[FakeFleet] | type[TimedFleet] | Callable[..., Any] = FakeFleet,
        records: Records | None = None,
        returns: Sequence[float] = (0.0,),
        evaluate_s: float = 0.5,
        ratio: Callable[..., float | None] | None = None,
        is_billed: bool = False,
        patience: Patience = DEFAULT_PATIENCE,
        learns: Mapping[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.experiment = make_experiment(**sections)
        self.records = records or Records()
        self.log: list[Any] = []
        self.told: list[dict[str, Any]] = []
        self.saved: list[tuple[Checkpoint, Checkpoint, bytes, BestPolicy | None]] = []
        self.ledgers: list[tuple[float, float]] = []
        self.views: list[RoundView] = []
        self.is_shielded = False
        self.clock, self.cache = ManualClock(), FakeCache(self.log)
        self.fleet = make_fleet(self.cache, self.clock, script)
        self.fleet.log = self.log
        self.learner = FakeLearner(self.clock, **learns or {})
        self.detector = FakeDetector(self.clock, ratio=ratio, log=self.log)
        self.evaluator = FakeEvaluator(self.clock, returns, evaluate_s=evaluate_s)
        self.model = cost_model(self.experiment, is_deployed=is_billed)
        self.meter = SpyMeter(
            self.model,
            Budget(self.experiment.budget.usd),
            clock=BillingClock(self.clock(), now=self.clock) if is_billed else None,
        )
        start = self.fleet.start

        def checked_start(invocations: Sequence[Any]) -> None:
            assert sum(self.ledgers[-1]) >= self.promised_usd - 1e-9, "the ledger covers it"
            start(invocations)

        self.fleet.start = checked_start
        run = FakeRun(
            self.experiment,
            self.fleet,
            self.cache,
            self.meter,
            self,
            lambda: self.save_ledger(),
            EVENT,
        )
        self.loop = run.loop(
            self.learner,
            self.detector,
            self.evaluator,
            self.clock,
            lambda *finished: self.save_round(*finished),
            self._shield,
            patience,
        )
        scaler = self.loop.roles.scaling.scaler
        decide = scaler.decide
        scaler.decide = lambda view: (self.views.append(view), decide(view))[1]

    def append(self, kind: str, **fields: Any) -> None:
        """Records an event, as an `EventSink`."""
        self.told.append({"event": kind, **json.loads(json.dumps(fields, allow_nan=False))})

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.told if event["event"] == kind]

    @property
    def promised_usd(self) -> float:
        return self.meter.spent_usd + self.meter.reserved_usd

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.records.rows

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    def started(self, round_index: int) -> list[Mapping[str, Any]]:
        """Returns the events of a round's actors in slot order, with retries after the actors that they replace."""
        return sorted(
            (i.event for i in self.fleet.started if i.event["round_index"] == round_index),
            key=lambda event: event["slot"],
        )

    def save_ledger(self) -> None:
        self.ledgers.append((self.meter.spent_usd, self.meter.reserved_usd))
        self.log.append(("ledger", self.meter.reserved_usd))
        assert self.promised_usd <= self.experiment.budget.usd
        records = self.records
        is_settled = self.meter.reserved_usd == 0.0
        if not records.is_bucket or is_settled or self.promised_usd > records.most_usd:
            records.ledger = json.loads(json.dumps(self.meter.get_state()))
            records.most_usd = self.promised_usd

    def save_round(
        self, finished: RoundRow, checkpoint: Checkpoint, policy: bytes, best: BestPolicy | None
    ) -> None:
        assert self.is_shielded
        records, row = self.records, json.loads(finished.to_json_line())
        records.rows = [*records.rows[: row["round_index"] - 1], row]
        records.checkpoint = copy.deepcopy(checkpoint)
        self.saved.append((records.checkpoint, checkpoint, policy, best))

    @contextmanager
    def _shield(self) -> Iterator[None]:
        was_shielded, self.is_shielded = self.is_shielded, True
        yield
        self.is_shielded = was_shielded

    def assert_settled(self) -> None:
        """Checks that nothing is in flight, awaited or reserved, and that the ledger says so."""
        assert self.meter.reserved_usd == 0.0
        assert self.ledgers[-1] == (self.meter.spent_usd, 0.0)
        assert self.meter.spent_usd <= self.experiment.budget.usd
        assert not self.loop.roles.rollouts.flight.in_flight
        assert not self.cache.doors, "an actor that still played would go on"


def worst_case_usd(actors: int, *, is_billed: bool = False, **sections: dict[str, Any]) -> float:
    """Returns what a round of so many actors reserves."""
    model = cost_model(make_experiment(**sections), is_deployed=is_billed)
    meter = Meter(model, Budget(1000.0))
    assert meter.open_round(actors, smallest=actors) == actors
    return meter.reserved_usd
