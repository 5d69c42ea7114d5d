"""Asynchronous rounds, on a fleet with its own clock, on which actors take their time."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import WireError
from runtime.detector.interfaces import Detected
from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from runtime.fleet.failures import Patience
from runtime.learner.interfaces import DetectorSamples
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.money.prices import PRICES
from runtime.money.work import ACTOR, Limits
from runtime.records.checkpoint import Checkpoint
from runtime.records.events import EventLog
from runtime.records.rows import RoundRow
from runtime.training.detection import Detection
from tests.fakes import (
    ERROR,
    OK,
    SPACES,
    FakeCache,
    FakeDetector,
    FakeEvaluator,
    FakeLearner,
    FakeProblem,
    FakeRun,
    ManualClock,
    Play,
    TimedFleet,
    closed_trajectory,
    digest,
    trajectory,
)
from tests.helpers import PATIENCE_S, cost_model, wait_for

STEPS = 4
EVENT = {"run_id": "run", "fragment_steps": STEPS, "seed": 3}
SLOW = replace(OK, takes_s=1.0)
HANGS = Play(None, None)

Script = Callable[[Mapping[str, Any], int], Play]


def make_experiment(**sections: dict[str, Any]) -> Experiment:
    tree: dict[str, Any] = {
        "environment": {"id": "Fake-v0"},
        "budget": {"usd": 1000.0},
        "algorithm": {
            "kind": "impact",
            "staleness_max": 8,
            "minibatch_steps": STEPS,
        },
        "scaler": {"kind": "fixed", "actors_fixed": 4, "actors_min": 2},
        "actor": {"fragment_steps": STEPS, "timeout_s": 60, "provisioned": 0},
        "learner": {"threads": 1},
        "stop": {"max_rounds": 3},
        "evaluation": {"every_rounds": 0},
    }
    if sections.get("scaler", {}).get("kind") == "nitro":
        tree["detector"] = {"subset_size": 8}
    return (
        experiment_from_tree(sections, base=tree, source="test")
        .resolved()
        .fitted(SPACES, preprocessing="none")
    )


class Killed(BaseException):
    """The process is gone: none of it still runs."""


class Disk:
    """Survives a process: its directory, or a bucket, which receives a ledger only if that covers more."""

    def __init__(self, *, is_bucket: bool = False) -> None:
        self.is_bucket, self.most_usd = is_bucket, 0.0
        self.rows: list[dict[str, Any]] = []
        self.checkpoint: Checkpoint | None = None
        self.ledger: dict[str, Any] | None = None
        self.promised_usd = 0.0


DEFAULT_PATIENCE = Patience()


class Rig:
    """One process's loop; checks invariants while it runs."""

    def __init__(
        self,
        tmp_path: Path,
        script: Script | None = None,
        *,
        disk: Disk | None = None,
        replays_max: int = 0,
        update_s: float = 0.25,
        evaluate_s: float = 0.5,
        concurrency: int = 10**9,
        returns: tuple[float, ...] = (0.0,),
        cache: FakeCache | None = None,
        is_deployed: bool = False,
        detector: type[FakeDetector] = FakeDetector,
        patience: Patience = DEFAULT_PATIENCE,
        **sections: dict[str, Any],
    ) -> None:
        self.experiment = make_experiment(**sections)
        self.disk = disk or Disk()
        self._told: list[dict[str, Any]] = []
        self._digests: dict[str, str] = {}
        events = EventLog(tmp_path / "events.jsonl", lambda: "now")
        events.listen(lambda kind, fields: self._told.append({"event": kind, **fields}))
        self.ledgers: list[float] = []
        self.clock, self.cache = ManualClock(), cache or FakeCache()
        self.fleet = TimedFleet(
            self.cache,
            self.clock,
            script or (lambda event, nth: SLOW),
            concurrency=concurrency,
            timeout_s=self.experiment.actor.timeout_s,
        )
        self.learner = FakeLearner(
            self.clock,
            update_s,
            replays_max=replays_max,
            staleness_max=self.experiment.algorithm.staleness_max,
            before_replay=self._before_replay,
        )
        self.model = cost_model(self.experiment, is_deployed=is_deployed)
        budget = Budget(self.experiment.budget.usd)
        clock = BillingClock(self.clock(), now=self.clock) if is_deployed else None
        self.meter = Meter(self.model, budget, clock=clock)
        self.detector = detector(self.clock, measure_s=0.0)
        self.most_open, self.is_shielded, self.killed_usd = 0, False, 0.0
        self._watch()
        run = FakeRun(
            self.experiment,
            self.fleet,
            self.cache,
            self.meter,
            events,
            lambda: self.save_ledger(),
            EVENT,
        )
        self.loop = run.loop(
            self.learner,
            self.detector,
            FakeEvaluator(self.clock, returns, evaluate_s=evaluate_s),
            self.clock,
            lambda *finished: self.save_round(*finished),
            self._shield,
            patience,
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self._told if event["event"] == kind]

    def resume(self) -> None:
        """Resumes as train does after a kill: the amount in the checkpoint or the ledger, whichever is larger, is
        spent.
        """
        if self.disk.checkpoint is not None:
            self.loop.restore(copy.deepcopy(self.disk.checkpoint))
        known, promised_usd = self.meter.get_state(), self.meter.spent_usd + self.meter.reserved_usd
        self.meter.set_state(copy.deepcopy(self.disk.ledger))
        if self.meter.spent_usd + self.meter.reserved_usd < promised_usd:
            self.meter.set_state(known)
        self.meter.forfeit()
        self.save_ledger()

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.disk.rows]

    def trained_ids(self) -> list[str]:
        """Returns this process's invocations whose trajectories were trained on, in that order."""
        for one, data in self.fleet.accepted.items():
            if one not in self._digests:
                with suppress(WireError):
                    self._digests[one] = digest(wire.decode(data, wire.Kind.TRAJECTORY)["rewards"])
        by_digest = {value: one for one, value in self._digests.items()}
        return [by_digest[one] for one in self.learner.trained if one in by_digest]

    def _watch(self) -> None:
        start, update = self.fleet.start, self.learner.update

        def checked_start(invocations):
            assert self.disk.promised_usd >= self.meter.spent_usd + self.meter.reserved_usd, (
                "the ledger covers it"
            )
            assert self.meter.spent_usd + self.meter.reserved_usd <= self.experiment.budget.usd
            start(invocations)
            self.most_open = max(self.most_open, self.fleet.open_count)

        def checked_update(batch, *, progress):
            staleness = self.learner.policy_version - batch.policy_versions
            assert (
                0 <= staleness.min() <= staleness.max() <= self.experiment.algorithm.staleness_max
            )
            return update(batch, progress=progress)

        self.fleet.start, self.learner.update = checked_start, checked_update

    @contextmanager
    def _shield(self):
        was_shielded, self.is_shielded = self.is_shielded, True
        yield
        self.is_shielded = was_shielded

    def _before_replay(self) -> None:
        assert not self.fleet.has_ended, "arrived trajectories come first"

    def save_ledger(self) -> None:
        self.ledgers.append(self.clock())
        self.disk.promised_usd = self.meter.spent_usd + self.meter.reserved_usd
        assert self.disk.promised_usd <= self.experiment.budget.usd
        if (
            not self.disk.is_bucket
            or self.disk.promised_usd > self.disk.most_usd
            or self.meter.reserved_usd == 0.0
        ):
            self.disk.ledger = json.loads(json.dumps(self.meter.get_state()))
            self.disk.most_usd = self.disk.promised_usd

    def save_round(self, finished: RoundRow, checkpoint: Checkpoint, *_: object) -> None:
        row = json.loads(finished.to_json_line())
        assert self.is_shielded
        taken_in = {
            one
            for one in self.fleet.returned
            if one not in self.loop.roles.rollouts.flight.in_flight
        }
        accepted = (taken_in & self.fleet.accepted.keys()) - self.unusable
        assert accepted <= set(self.trained_ids()), (
            "all accepted trajectories are trained on before the row is written"
        )
        self.disk.rows = [old for old in self.disk.rows if old["round_index"] < row["round_index"]]
        self.disk.rows.append(row)
        self.disk.checkpoint = copy.deepcopy(checkpoint)

    @property
    def unusable(self) -> set[str]:
        """Returns actors whose trajectories were accepted but not as requested."""
        return {
            failed["invocation_id"]
            for failed in self.events("actor_failed")
            if failed["invocation_id"] in self.fleet.accepted
        }


def assert_settled(rig: Rig) -> None:
    assert rig.meter.reserved_usd == 0.0
    assert rig.disk.ledger["budget"]["reserved"] == {}
    assert rig.meter.spent_usd <= rig.experiment.budget.usd
    assert not rig.fleet.misses
    assert not rig.loop.roles.rollouts.flight.in_flight


# A stream of trajectories


def test_each_actor_starts_with_the_newest_weights_and_numbers_of_its_own(tmp_path: Path):
    rig = Rig(tmp_path, lambda event, nth: replace(OK, takes_s=1.0 + nth % 3))
    versions = []
    start = rig.fleet.start
    rig.fleet.start = lambda invocations: (
        versions.append(rig.learner.policy_version),
        start(invocations),
    )
    rig.loop.run()
    started = [invocation.event for invocation in rig.fleet.started]
    assert len({(event["round_index"], event["slot"]) for event in started}) == len(started)
    assert len({event["invocation_id"] for event in started}) == len(started)
    assert {event["policy_version"] for event in started} == set(versions)
    assert [event["policy_version"] for event in started] == sorted(
        event["policy_version"] for event in started
    )


@pytest.mark.parametrize("takes_s", [[1.0], [1.0, 1.5, 4.0], [0.25, 9.0]])
def test_a_round_has_a_fragment_for_each_of_its_actors(tmp_path: Path, takes_s: list[float]):
    """Actors in flight from the round before count for the round that receives them."""
    counts = [8, 32, 8, 3, 32]
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=takes_s[nth % len(takes_s)]),
        scaler={"kind": "schedule", "schedule": list(enumerate(counts, start=1))},
        algorithm={"staleness_max": 1000},
        stop={"max_rounds": 5},
        actor={"timeout_s": 200},
    )
    assert rig.loop.run() == "max_rounds"
    assert rig.column("env_steps") == [STEPS * count for count in counts]
    assert (
        rig.column("actors_returned")
        == rig.column("actor_count")
        == rig.column("actor_count_wanted")
        == counts
    )
    assert max(rig.column("updates")) > 1, "trajectories are trained on as they arrive"
    started = Counter(one.event["round_index"] for one in rig.fleet.started)
    assert started[1] + started[2] <= 8 + 32 + 8, "a boosted round leaves no more than are due next"
    assert_settled(rig)


@pytest.mark.parametrize("replays_max", [0, 2])
def test_a_boosted_round_has_as_many_samples_as_the_scaler_decides(
    tmp_path: Path, replays_max: int
):
    """A measurement may outlast the trajectories that are due; the learner waits for it."""
    ratios = iter([3.0, 1.0, 3.0])
    rig = Rig(
        tmp_path,
        scaler=nitro(actors_max=12),
        algorithm={"staleness_max": 99},
        stop={"max_rounds": 4},
        replays_max=replays_max,
    )
    trained_on: list[int] = []

    def measure(problem: FakeProblem):
        """Ends only when the learner has trained on all trajectories that are due."""
        due = len(rig.learner.trained) + 2
        wait_for(lambda: len(rig.learner.trained) >= due, "the learner")
        trained_on.append(len(rig.learner.trained) - due)
        ratio = next(ratios)
        return Detected(-1.0, ratio, ratio, products=5)

    rig.detector.measure = measure
    assert rig.loop.run() == "max_rounds"
    assert rig.column("convexity_ratio") == [None, 3.0, 1.0, 3.0]
    assert rig.column("actor_count_wanted") == rig.column("actor_count") == [12, 12, 12, 2]
    assert rig.column("env_steps") == [STEPS * count for count in (12, 12, 12, 2)]
    assert trained_on == [0, 0, 0], "no more than those, until it is decided"
    assert_settled(rig)


def test_max_steps_is_never_exceeded_and_nobody_plays_what_it_has_no_room_for(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 3),
        scaler={"actors_fixed": 8},
        stop={"max_rounds": None, "max_steps": 21 * STEPS + 3},
    )
    assert rig.loop.run() == "max_steps"
    assert rig.column("env_steps_total")[-1] == 21 * STEPS
    assert len(rig.fleet.started) == 21
    assert not rig.events("actors_abandoned")
    assert_settled(rig)


def test_it_neither_spins_nor_writes_the_ledger_for_every_actor(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=0.75 + nth % 7 / 16),
        update_s=0.02,
        scaler={"actors_fixed": 64},
        algorithm={"staleness_max": 99},
        stop={"max_rounds": 20},
        actor={"timeout_s": 1},
        fleet={"round_deadline_s": 100},
    )
    started_s = rig.clock()
    rig.loop.run()
    elapsed_s = rig.clock() - started_s
    assert len(rig.fleet.started) > 1000
    assert len(rig.ledgers) <= elapsed_s / 0.9 + 25
    assert len(rig.fleet.waits) <= 2 * (len(rig.fleet.returned) + sum(rig.column("updates"))) + 100
    assert sum(1 for timeout_s in rig.fleet.waits if timeout_s > 0) <= len(rig.learner.batches) + 50


# Staleness


def test_an_actor_that_would_fall_too_far_behind_is_given_up(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: HANGS if nth == 0 else SLOW,
        algorithm={"staleness_max": 2},
        actor={"timeout_s": 500},
        update_s=0.0,
    )
    rig.loop.run()
    assert "r1a-0-0" not in rig.trained_ids()
    assert max(rig.column("staleness_max")) <= 2
    (event, *rest) = rig.events("actors_abandoned")
    assert event["count"] == 1
    assert "staleness_max = 2" in event["reason"]
    assert sum(rig.column("actors_failed")) == 1
    assert not rig.events("actor_failed"), "it did nothing wrong"
    assert_settled(rig)


@pytest.mark.parametrize("lingers_s", [0.0, 30.0])
def test_what_is_accepted_before_its_actor_is_given_up_is_trained_on_in_time(
    tmp_path: Path, lingers_s: float
):
    """It has submitted its trajectory, but has not ended."""
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=0.5, lingers_s=500.0) if nth == 0 else SLOW,
        algorithm={"staleness_max": 2},
        update_s=0.0,
        actor={"timeout_s": 10 if lingers_s else 600},
    )
    rig.loop.run()
    assert "r1a-0-0" in rig.trained_ids()
    assert rig.trained_ids().count("r1a-0-0") == 1
    assert max(rig.column("staleness_max")) == 2
    assert sum(rig.column("actors_failed")) == 0
    assert_settled(rig)


# Failures


def test_a_round_ends_at_its_deadline_with_what_it_has(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: SLOW if nth == 0 else replace(ERROR, takes_s=150.0),
        actor={"timeout_s": 200},
        fleet={"round_deadline_s": 200},
        stop={"max_rounds": 1},
    )
    started_s = rig.clock()
    assert rig.loop.run() == "max_rounds"
    (row,) = rig.disk.rows
    assert row["round_s"] == pytest.approx(200.0, abs=0.3)
    assert row["env_steps"] == STEPS
    assert rig.clock() - started_s < 201.0
    assert_settled(rig)


def test_three_rounds_without_a_trajectory_end_the_run(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=100.0),
        actor={"timeout_s": 900},
        fleet={"round_deadline_s": 900},
        scaler={"actors_fixed": 2},
    )
    rig.fleet.timeout_s = 10**6
    rig.fleet.script = lambda event, nth: HANGS
    with pytest.raises(ActorsKeepFailingError, match="no trajectory 3 times in a row"):
        rig.loop.run()
    assert [event["actors_returned"] for event in rig.events("round_rejected")] == [0, 0, 0]
    assert_settled(rig)


# Open episodes


def test_an_episode_is_continued_once_oldest_first(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 5 / 8),
        stop={"max_rounds": 5},
    )
    rig.loop.run()
    continued = [
        event["episode_id"] for event in (i.event for i in rig.fleet.started) if event["episode_id"]
    ]
    assert len(continued) > 10
    assert len(set(continued)) == len(continued)
    assert len(rig.cache.episodes) <= 4


# Money


def test_rows_add_up_and_what_is_in_flight_at_the_end_is_settled(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 3),
        evaluation={"every_rounds": 2},
        actor={"provisioned": 2},
    )
    rig.loop.run()
    spent = np.cumsum(rig.column("round_cost_usd"))
    assert rig.column("spent_usd") == pytest.approx(list(spent), abs=1e-8)
    for row in rig.disk.rows:
        parts = (
            "actors_cost_usd",
            "provisioned_cost_usd",
            "learner_cost_usd",
            "infrastructure_cost_usd",
        )
        assert row["round_cost_usd"] == pytest.approx(sum(row[part] for part in parts))
        assert row["reserved_usd"] > 0.0
        assert row["learner_cost_usd"] == pytest.approx(row["round_s"] * 0.08925 / 3600)
    unfinished_usd = rig.meter.spent_usd - spent[-1]
    assert 0.0 < unfinished_usd < 4 * 4.0 * PRICES.functions["x86_64"].on_demand_usd
    assert_settled(rig)


def test_every_round_puts_its_standing_part_into_the_ledger(tmp_path: Path):
    """A deployed learner uses it to report until when its standing costs are covered."""
    rig = Rig(tmp_path, lambda event, nth: replace(OK, takes_s=30.0), stop={"max_rounds": 8})
    saved: list[tuple[int, bool]] = []
    real = rig.save_ledger

    def save() -> None:
        real()
        saved.append((len(rig.disk.rows), "round" in rig.disk.ledger["budget"]["reserved"]))

    rig.save_ledger = save
    rig.loop.run()
    assert {rows for rows, is_there in saved if is_there} == set(range(8))


def worst_case_usd(actors: int, **sections: dict[str, Any]) -> float:
    experiment = make_experiment(**sections)
    meter = Meter(cost_model(experiment), Budget(1000.0))
    assert meter.open_round(actors, smallest=actors) == actors
    return meter.reserved_usd


@pytest.mark.parametrize(
    ("actors", "smallest", "factor"),
    [*((4, 2, factor) for factor in (1.1, 1.6, 6.0)), *((32, 8, factor) for factor in (1.1, 1.6))],
)
def test_the_budget_is_used_until_it_holds_no_further_round_and_nothing_paid_is_lost(
    tmp_path: Path, actors: int, smallest: int, factor: float
):
    scaler = {"actors_fixed": actors, "actors_min": smallest}
    rig = Rig(
        tmp_path,
        budget={"usd": factor * worst_case_usd(actors)},
        stop={"max_rounds": 10**6},
        scaler=scaler,
        algorithm={"staleness_max": 1000},
    )
    assert rig.loop.run() == "budget"
    assert len(rig.disk.rows) > 3
    assert len(rig.events("budget_exhausted")) == 1
    assert set(rig.fleet.accepted) == set(rig.trained_ids()), "no arrived trajectory is lost"
    assert not rig.events("actors_abandoned")
    # The rest would not have paid for another round.
    assert rig.experiment.budget.usd - rig.meter.spent_usd < worst_case_usd(smallest, scaler=scaler)
    assert rig.meter.spent_usd == pytest.approx(sum(rig.column("round_cost_usd")), abs=1e-3)
    assert_settled(rig)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), is_deployed=st.booleans())
def test_tightened_limits_use_a_budget_up_and_never_exceed_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int, is_deployed: bool
):
    """Here, too, every start and every write of the ledger is checked."""

    def script(event: Mapping[str, Any], nth: int) -> Play:
        return replace(OK, takes_s=random.Random(f"{seed} {nth}").uniform(0.5, 1.5))

    sections = {
        "actor": {"timeout_s": 2},
        "fleet": {"round_deadline_s": 8},
        "learner": {"update_timeout_s": 8},
        "scaler": {"actors_min": 4},
        "stop": {"max_rounds": 10**6},
    }
    usd = (6.0 if is_deployed else 1.5) * worst_case_usd(4, **sections)
    rig = Rig(
        tmp_path_factory.mktemp("run"),
        script,
        budget={"usd": usd},
        is_deployed=is_deployed,
        **sections,
    )
    assert rig.loop.run() == "budget"
    # Writes of a deployed run's ledger can leave so little that even tightened limits hold no further round.
    assert is_deployed or rig.events("limits_tightened")
    assert (0.45 if is_deployed else 0.85) * usd <= rig.meter.spent_usd <= usd
    assert not rig.events("round_lost")
    assert_settled(rig)


def test_an_evaluation_is_waited_for_no_longer_than_is_reserved(tmp_path: Path):
    rig = Rig(
        tmp_path,
        evaluate_s=5e5,
        learner={"update_timeout_s": 120},
        evaluation={"every_rounds": 1},
    )
    began_s = rig.clock()
    with pytest.raises(BudgetError, match="learner.update_timeout_s"):
        rig.loop.run()
    assert rig.clock() - began_s < 5e5


def test_a_round_that_takes_longer_than_is_reserved_ends_the_run_and_is_paid_as_far_as_it_was(
    tmp_path: Path,
):
    rig = Rig(tmp_path, update_s=500.0, learner={"update_timeout_s": 120})
    with pytest.raises(BudgetError, match="learner.update_timeout_s"):
        rig.loop.run()
    assert rig.disk.rows == []
    assert rig.meter.reserved_usd == 0.0
    # Where nothing is billed, at most what was reserved is spent.
    assert 120 * 0.08925 / 3600 < rig.meter.spent_usd < 500 * 0.08925 / 3600


# The detector next to the learner


def nitro(**more: Any) -> dict[str, Any]:
    return {"kind": "nitro", "actors_max": 6, "window_rounds": 3, "decay_factor": 1.0, **more}


def detector_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "detector"]


def join_detector() -> None:
    for thread in detector_threads():
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_measurement_that_outlives_its_round_counts_its_own_samples():
    """The deadline cuts a round while its detector measures, and the round keeps other samples for the next."""
    clock, (more, fewer) = (
        ManualClock(),
        (DetectorSamples(*(np.zeros(count, np.float32) for _ in range(6))) for count in (4, 3)),
    )
    detection = Detection(
        FakeDetector(clock),
        FakeLearner(clock, 0.0),
        signals=frozenset({"convexity_ratio"}),
        timeout_s=1.0,
        time_limit=lambda seconds, what: nullcontext(),
        clock=clock,
    )
    detection.keep([more])
    measurement = detection.begin()
    detection.keep([fewer])
    assert measurement.result(PATIENCE_S).samples == 4


def test_samples_are_the_rounds_newest(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: replace(OK, takes_s=1.0 + nth / 100),
        scaler=nitro(),
        update_s=0.0,
        stop={"max_rounds": 1},
    )
    kept: list[DetectorSamples] = []
    rig.detector.select = lambda samples: kept.append(samples) or samples
    rig.loop.run()
    (samples,) = kept
    last = np.concatenate([batch.rewards.reshape(-1) for batch in rig.learner.batches[-2:]])
    assert np.array_equal(samples.advantages, last.astype(np.float32)), (
        "the fewest updates with subset_size samples"
    )


# Unplanned ends


@pytest.mark.parametrize("is_deployed", [True, False])
def test_an_actor_has_all_its_time_though_limits_are_tight(
    tmp_path: Path, is_deployed: bool
) -> None:
    """AWS Lambda cannot be told to end an actor earlier, and here nothing ends for being slow."""
    rig = Rig(tmp_path, is_deployed=is_deployed, actor={"timeout_s": 60})
    limits = Limits(actor_s=2.0, collect_s=3.0, update_s=4.0, factor=4.0)
    assert rig.loop.roles.money.by_the_clock(limits).actor_s == 60.0


# Random events


def anything(stream: random.Random) -> Script:
    """Actors that do everything that actors can do."""
    takes_s = [0.01, 0.25, 1.0, 1.0, 1.0, 2.0, 7.0]

    def script(event: Mapping[str, Any], nth: int) -> Play:
        kind = stream.random()
        play = replace(
            OK,
            takes_s=stream.choice(takes_s),
            lingers_s=stream.choice([0.0, 0.0, 0.5, 20.0]),
            outcomes=stream.choice([1, 1, 2]),
        )
        if kind < 0.08:
            play = replace(play, status="error", submits=None, error="RuntimeError: broken joint")
        elif kind < 0.14:
            play = replace(
                play, status="crashed", submits=stream.choice([None, trajectory]), error="killed"
            )
        elif kind < 0.18:
            play = replace(
                play,
                status=None,
                submits=stream.choice([None, trajectory]),
                heeds_abandon=stream.random() < 0.7,
            )
        elif kind < 0.22:
            play = replace(play, submits=lambda event: trajectory(event)[:-3])
        elif kind < 0.4:
            play = replace(play, submits=closed_trajectory)
        return play

    return script


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    staleness_max=st.sampled_from([1, 3, 30]),
    replays_max=st.sampled_from([0, 2]),
    actors=st.integers(1, 7),
    minibatch=st.sampled_from([1, 3]),
    concurrency=st.sampled_from([1, 3, 10**9]),
    usd=st.sampled_from([0.06, 0.2, 1000.0]),
    kind=st.sampled_from(["fixed", "nitro"]),
    update_s=st.sampled_from([0.0, 0.1, 3.0]),
    is_bucket=st.booleans(),
    max_steps=st.sampled_from([None, 9 * STEPS + 2]),
    ends=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=4),
)
def test_nothing_is_lost_and_nothing_trained_on_twice(
    tmp_path_factory: pytest.TempPathFactory,
    seed,
    staleness_max,
    replays_max,
    actors,
    minibatch,
    concurrency,
    usd,
    kind,
    update_s,
    is_bucket,
    max_steps,
    ends,
):
    """Kills and interrupts, each followed by a resumption. `Rig` checks reservations, staleness and completeness."""
    stream, disk = random.Random(seed), Disk(is_bucket=is_bucket)
    killed_usd = 0.0
    tmp_path = tmp_path_factory.mktemp("run")
    for is_kill, after in [*ends, (False, None)]:
        rig = Rig(
            tmp_path,
            anything(stream),
            disk=disk,
            replays_max=replays_max,
            update_s=update_s,
            concurrency=concurrency,
            budget={"usd": usd},
            scaler={
                "kind": kind,
                "actors_min": min(2, actors),
                **({"actors_fixed": actors} if kind == "fixed" else {"actors_max": max(2, actors)}),
            },
            algorithm={
                "staleness_max": staleness_max,
                "minibatch_steps": minibatch * STEPS,
            },
            actor={"timeout_s": 10},
            fleet={"round_deadline_s": 60},
            patience=Patience(failures_max=1000),
            stop={"max_steps": max_steps},
        )
        if disk.ledger is not None:
            rig.resume()
            assert killed_usd <= rig.meter.spent_usd + 1e-9 <= usd + 2e-9
        trained_before = list(rig.learner.trained)
        try:
            end_after(rig, after, Killed if is_kill else KeyboardInterrupt)
            reason = rig.loop.run()
        except KeyboardInterrupt:
            assert_settled(rig)
        except Killed:
            killed_usd = rig.killed_usd
        else:
            assert_settled(rig)
            assert reason in ("max_rounds", "budget", "max_steps")
        if is_kill:
            join_detector()
        assert not rig.fleet.misses
        trained = rig.learner.trained
        assert len(set(trained)) == len(trained)
        assert trained[: len(trained_before)] == trained_before
        assert rig.column("round_index") == list(range(1, len(disk.rows) + 1))
        in_rows = sum(rig.column("env_steps"))
        assert max_steps is None or in_rows <= max_steps
        assert disk.checkpoint is None or in_rows == STEPS * len(
            disk.checkpoint.values["learner"]["trained"]
        )
        assert all(limit <= staleness_max for limit in rig.column("staleness_max"))
        assert sum(rig.column("round_cost_usd")) <= rig.meter.spent_usd + 1e-7
        if after is None:
            break


def end_after(rig: Rig, calls: int | None, error: type[BaseException]) -> None:
    """Raises after this many calls of the parts that a run waits for. A killed process does nothing afterwards."""
    if calls is None:
        return
    left = calls

    def ending(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if rig.is_shielded and error is KeyboardInterrupt:
                return real(*arguments, **named)
            left -= 1
            if left == 0 and error is Killed:
                rig.killed_usd = (
                    rig.meter.spent_usd + rig.meter.reserved_usd
                    if name != "save_ledger"
                    else rig.meter.spent_usd
                    + rig.fleet.open_count * rig.model.roles[ACTOR].worst_case_usd()
                )
            if left == 0 or (left < 0 and error is Killed):
                raise error
            return real(*arguments, **named)

        setattr(owner, name, call)

    ending(rig.fleet, "wait")
    ending(rig.learner, "update")
    if error is Killed:
        ending(rig.fleet, "start")
        ending(rig, "save_ledger")
        ending(rig, "save_round")
