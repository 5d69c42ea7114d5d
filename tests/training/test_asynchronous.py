"""Asynchronous rounds, on a fleet with its own clock, on which actors take their time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import WireError
from runtime.detector.interfaces import Detected
from runtime.errors import ActorsKeepFailingError
from runtime.fleet.failures import Patience
from runtime.learner.interfaces import DetectorSamples
from runtime.money.prices import PRICES
from runtime.money.work import ACTOR
from runtime.records.checkpoint import Checkpoint
from runtime.records.rows import RoundRow
from runtime.training.detection import Detection
from tests.fakes import (
    ERROR,
    OK,
    FakeDetector,
    FakeLearner,
    FakeProblem,
    ManualClock,
    Play,
    TimedFleet,
    closed_trajectory,
    digest,
    trajectory,
)
from tests.fleet.parts import STEPS
from tests.helpers import PATIENCE_S, wait_for
from tests.training.rig import Records, Rig, Script, worst_case_usd

SLOW = replace(OK, takes_s=1.0)
HANGS = Play(None, None)
NITRO = {"kind": "nitro", "actors_max": 6, "decay_factor": 1.0}


def sections_of(**sections: dict[str, Any]) -> dict[str, Any]:
    """Returns the sections of an experiment with asynchronous rounds, changed by these."""
    usual: dict[str, Any] = {
        "algorithm": {"kind": "impact", "staleness_max": 8, "minibatch_steps": STEPS},
        "scaler": {"kind": "fixed", "actors_fixed": 4, "actors_min": 2},
        "actor": {"timeout_s": 60, "provisioned": 0},
        "stop": {"max_rounds": 3},
        "detector": {"subset_size": 8},
    }
    if "kind" in sections.get("scaler", {}):
        usual["scaler"] = {"actors_min": 2}
    if sections.get("scaler", {}).get("kind") != "nitro":
        del usual["detector"]
    return {key: usual.get(key, {}) | sections.get(key, {}) for key in usual | sections}


class StreamRig(Rig):
    """Checks, besides, that all accepted trajectories are trained on in time and before their row is written."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        concurrency: int = 10**9,
        records: Records | None = None,
        returns: Sequence[float] = (0.0,),
        is_billed: bool = False,
        patience: Patience | None = None,
        learns: Mapping[str, Any] | None = None,
        **sections: dict[str, Any],
    ) -> None:
        sections = sections_of(**sections)
        staleness_max = sections["algorithm"]["staleness_max"]
        super().__init__(
            script or (lambda event, nth: SLOW),
            make_fleet=partial(
                TimedFleet, concurrency=concurrency, timeout_s=sections["actor"]["timeout_s"]
            ),
            records=records,
            returns=returns,
            is_billed=is_billed,
            patience=patience or Patience(),
            learns={"staleness_max": staleness_max, "before_replay": self._before_replay}
            | dict(learns or {}),
            **sections,
        )
        self.killed_usd = 0.0
        self._digests: dict[str, str] = {}
        update = self.learner.update

        def checked_update(batch: Any, *, progress: float) -> Any:
            staleness = self.learner.policy_version - batch.policy_versions
            assert 0 <= staleness.min() <= staleness.max() <= staleness_max
            return update(batch, progress=progress)

        self.learner.update = checked_update

    def _before_replay(self) -> None:
        assert not self.fleet.has_ended, "arrived trajectories come first"

    def resume(self) -> None:
        """Resumes as train does: the amount in the checkpoint or the ledger, whichever is larger, is spent."""
        if self.records.checkpoint is not None:
            self.loop.restore(self.records.checkpoint)
        known, promised_usd = self.meter.get_state(), self.promised_usd
        self.meter.set_state(self.records.ledger)
        if self.promised_usd < promised_usd:
            self.meter.set_state(known)
        self.meter.forfeit()
        self.save_ledger()

    def trained_ids(self) -> list[str]:
        """Returns this process's invocations whose trajectories were trained on, in that order."""
        for one, data in self.fleet.accepted.items():
            if one not in self._digests:
                with suppress(WireError):
                    self._digests[one] = digest(wire.decode(data, wire.Kind.TRAJECTORY)["rewards"])
        by_digest = {value: one for one, value in self._digests.items()}
        return [by_digest[one] for one in self.learner.trained if one in by_digest]

    def save_round(self, finished: RoundRow, checkpoint: Checkpoint, *rest: Any) -> None:
        in_flight = self.loop.roles.rollouts.flight.in_flight
        taken_in = {one for one in self.fleet.returned if one not in in_flight}
        failed = {event["invocation_id"] for event in self.events("actor_failed")}
        assert (taken_in & self.fleet.accepted.keys()) - failed <= set(self.trained_ids())
        super().save_round(finished, checkpoint, *rest)

    def assert_settled(self) -> None:
        super().assert_settled()
        assert self.records.ledger["budget"]["reserved"] == {}
        assert not self.fleet.misses


# A stream of trajectories


def test_each_actor_starts_with_the_newest_weights_and_numbers_and_an_episode_of_its_own():
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 5 / 8), stop={"max_rounds": 5}
    )
    versions: list[int] = []
    start = rig.fleet.start
    rig.fleet.start = lambda ones: (
        versions.extend([rig.learner.policy_version] * len(ones)),
        start(ones),
    )
    rig.loop.run()
    started = [invocation.event for invocation in rig.fleet.started]
    assert [event["policy_version"] for event in started] == versions
    assert len({(event["round_index"], event["slot"]) for event in started}) == len(started)
    assert len({event["invocation_id"] for event in started}) == len(started)
    continued = [event["episode_id"] for event in started if event["episode_id"]]
    assert len(set(continued)) == len(continued) > 10
    assert len(rig.cache.episodes) <= 4 and len(rig.cache.weights) <= 5


@pytest.mark.parametrize("takes_s", [[1.0], [0.25, 9.0]])
def test_a_round_has_a_fragment_for_each_of_its_actors(takes_s: list[float]):
    """Actors in flight from the round before count for the round that receives them."""
    counts = [8, 32, 8, 3, 32]
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=takes_s[nth % len(takes_s)]),
        scaler={"kind": "schedule", "actors_max": 32, "schedule": list(enumerate(counts, start=1))},
        algorithm={"staleness_max": 1000},
        stop={"max_rounds": 5},
        actor={"timeout_s": 200},
    )
    assert rig.loop.run() == "max_rounds"
    assert rig.column("env_steps") == [STEPS * count for count in counts]
    for name in ("actors_returned", "actor_count", "actor_count_wanted"):
        assert rig.column(name) == counts
    assert max(rig.column("updates")) > 1, "trajectories are trained on as they arrive"
    started = Counter(one.event["round_index"] for one in rig.fleet.started)
    assert started[1] + started[2] <= 8 + 32 + 8, "a boosted round leaves no more than are due next"
    rig.assert_settled()


@pytest.mark.parametrize("replays_max", [0, 2])
def test_a_boosted_round_has_as_many_samples_as_the_scaler_decides(replays_max: int):
    """A measurement may outlast the trajectories that are due; the learner waits for it."""
    ratios = iter([3.0, 1.0, 3.0])
    rig = StreamRig(
        scaler=NITRO | {"actors_max": 12},
        algorithm={"staleness_max": 99},
        stop={"max_rounds": 4},
        learns={"replays_max": replays_max},
    )
    trained_on: list[int] = []

    def measure(problem: FakeProblem) -> Detected:
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
    assert trained_on == [0, 0, 0], "no more than those, until it is decided"
    rig.assert_settled()


def test_max_steps_is_never_exceeded_and_nobody_plays_what_it_has_no_room_for():
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 3),
        scaler={"actors_fixed": 8},
        stop={"max_rounds": None, "max_steps": 21 * STEPS + 3},
    )
    assert rig.loop.run() == "max_steps"
    assert rig.column("env_steps_total")[-1] == 21 * STEPS
    assert len(rig.fleet.started) == 21 and not rig.events("actors_abandoned")
    rig.assert_settled()


def test_it_neither_spins_nor_writes_the_ledger_for_every_actor():
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=0.75 + nth % 7 / 16),
        learns={"update_s": 0.02},
        scaler={"actors_fixed": 64},
        algorithm={"staleness_max": 99},
        stop={"max_rounds": 10},
        actor={"timeout_s": 1},
        fleet={"round_deadline_s": 100},
    )
    started_s = rig.clock()
    rig.loop.run()
    assert len(rig.fleet.started) > 500
    assert len(rig.ledgers) <= (rig.clock() - started_s) / 0.9 + 25
    assert len(rig.fleet.waits) <= 2 * (len(rig.fleet.returned) + sum(rig.column("updates"))) + 100
    assert sum(1 for timeout_s in rig.fleet.waits if timeout_s > 0) <= len(rig.learner.batches) + 50


# Staleness, deadlines


@pytest.mark.parametrize("submits", [False, True])
@pytest.mark.parametrize("timeout_s", [10, 500])
def test_an_actor_that_would_fall_too_far_behind_is_given_up_unless_its_trajectory_is_there(
    submits: bool, timeout_s: int
):
    first = replace(OK, takes_s=0.5, lingers_s=500.0) if submits else HANGS
    rig = StreamRig(
        lambda event, nth: SLOW if nth else first,
        algorithm={"staleness_max": 2},
        actor={"timeout_s": timeout_s},
        learns={"update_s": 0.0},
    )
    rig.loop.run()
    assert rig.trained_ids().count("r1a-0-0") == submits
    assert max(rig.column("staleness_max")) == 2
    assert sum(rig.column("actors_failed")) == (not submits)
    assert not rig.events("actor_failed"), "it did nothing wrong"
    if not submits:
        event = rig.events("actors_abandoned")[0]
        assert event["count"] == 1 and "staleness_max = 2" in event["reason"]
    rig.assert_settled()


def test_a_round_ends_at_its_deadline_with_what_it_has():
    rig = StreamRig(
        lambda event, nth: SLOW if nth == 0 else replace(ERROR, takes_s=150.0),
        actor={"timeout_s": 200},
        fleet={"round_deadline_s": 200},
        stop={"max_rounds": 1},
    )
    assert rig.loop.run() == "max_rounds"
    assert rig.column("round_s") == [pytest.approx(200.0, abs=0.3)]
    assert rig.column("env_steps") == [STEPS]
    (cut,) = rig.events("round_cut")
    assert (cut["env_steps"], cut["wanted"]) == (STEPS, 4 * STEPS)
    rig.assert_settled()


def test_three_rounds_without_a_trajectory_end_the_run():
    rig = StreamRig(lambda event, nth: HANGS, scaler={"actors_fixed": 2})
    rig.fleet.timeout_s = 10**6
    with pytest.raises(ActorsKeepFailingError, match="no trajectory 3 times in a row"):
        rig.loop.run()
    assert [event["actors_returned"] for event in rig.events("round_rejected")] == [0, 0, 0]
    rig.assert_settled()


# Money


def test_rows_add_up_and_what_is_in_flight_at_the_end_is_settled():
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=1.0 + nth % 3),
        evaluation={"every_rounds": 2},
        actor={"provisioned": 2},
    )
    rig.loop.run()
    spent = np.cumsum(rig.column("round_cost_usd"))
    assert rig.column("spent_usd") == pytest.approx(list(spent), abs=1e-8)
    assert min(rig.column("reserved_usd")) > 0.0
    learner_usd = [row["round_s"] * 0.08925 / 3600 for row in rig.rows]
    assert rig.column("learner_cost_usd") == pytest.approx(learner_usd)
    waited_s = [row["round_s"] - row["learn_s"] - (row["evaluate_s"] or 0.0) for row in rig.rows]
    assert rig.column("collect_s") == pytest.approx(waited_s) and min(waited_s) > 0.0
    unfinished_usd = rig.meter.spent_usd - spent[-1]
    assert 0.0 < unfinished_usd < 4 * 4.0 * PRICES.functions["x86_64"].on_demand_usd
    rig.assert_settled()


def test_every_round_puts_its_standing_part_into_the_ledger():
    """A deployed learner uses it to report until when its standing costs are covered."""
    rig = StreamRig(lambda event, nth: SLOW, stop={"max_rounds": 8})
    covered: set[int] = set()
    real = rig.save_ledger

    def save() -> None:
        real()
        if "round" in rig.records.ledger["budget"]["reserved"]:
            covered.add(rig.loop.roles.progress.current_round)

    rig.save_ledger = save
    rig.loop.run()
    assert covered == set(range(1, 9))


@pytest.mark.parametrize("is_billed", [False, True])
@pytest.mark.parametrize(("actors", "smallest", "factor"), [(4, 2, 1.1), (4, 2, 2.0), (32, 8, 1.1)])
def test_the_budget_is_used_until_it_holds_no_further_round_and_nothing_paid_is_lost(
    actors: int, smallest: int, factor: float, is_billed: bool
):
    sections = sections_of(scaler={"actors_fixed": actors, "actors_min": smallest})
    rig = StreamRig(
        budget={"usd": factor * worst_case_usd(actors, is_billed=is_billed, **sections)},
        stop={"max_rounds": 10**6},
        scaler=sections["scaler"],
        algorithm={"staleness_max": 1000},
        is_billed=is_billed,
    )
    forfeit, forfeited_usd = rig.meter.forfeit, []
    rig.meter.forfeit = lambda ran_s: forfeited_usd.append(forfeit(ran_s))
    assert rig.loop.run() == "budget"
    assert forfeited_usd == [0.0], "all was settled"
    assert len(rig.rows) > 3 and len(rig.events("budget_exhausted")) == 1
    assert set(rig.fleet.accepted) == set(rig.trained_ids()), "no arrived trajectory is lost"
    assert not rig.events("actors_abandoned")
    # The rest would not have paid for another round, which also needs writes of a deployed run's ledger.
    left_usd = rig.experiment.budget.usd - rig.meter.spent_usd
    assert is_billed or left_usd < worst_case_usd(smallest, **sections)
    assert rig.meter.spent_usd == pytest.approx(sum(rig.column("round_cost_usd")), abs=1e-3)
    rig.assert_settled()


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), is_billed=st.booleans())
def test_tightened_limits_use_a_budget_up_and_never_exceed_it(seed: int, is_billed: bool):
    def script(event: Mapping[str, Any], nth: int) -> Play:
        return replace(OK, takes_s=random.Random(f"{seed} {nth}").uniform(0.5, 1.5))

    sections = {
        "actor": {"timeout_s": 2},
        "fleet": {"round_deadline_s": 8},
        "learner": {"update_timeout_s": 8},
        "scaler": {"actors_min": 4},
        "stop": {"max_rounds": 10**6},
    }
    usd = (6.0 if is_billed else 1.5) * worst_case_usd(4, **sections_of(**sections))
    rig = StreamRig(script, budget={"usd": usd}, is_billed=is_billed, **sections)
    assert rig.loop.run() == "budget"
    # Writes of a deployed run's ledger can leave so little that even tightened limits hold no further round.
    assert is_billed or rig.events("limits_tightened")
    assert (0.45 if is_billed else 0.85) * usd <= rig.meter.spent_usd <= usd
    rig.assert_settled()


# The detector next to the learner


def test_a_measurement_that_outlives_its_round_counts_its_own_samples():
    """The deadline cuts a round while its detector measures, and the round keeps other samples for the next."""
    clock = ManualClock()
    more, fewer = (
        DetectorSamples(*(np.zeros(count, np.float32) for _ in range(6))) for count in (4, 3)
    )
    detection = Detection(
        FakeDetector(clock),
        FakeLearner(clock, 0.0),
        signals=frozenset({"convexity_ratio"}),
        subset_size=4,
        timeout_s=1.0,
        clock=clock,
    )
    detection.add(more)
    detection.end_round()
    measurement = detection.begin()
    detection.add(fewer)
    detection.end_round()
    assert measurement.result(PATIENCE_S).samples == 4


def test_samples_are_the_rounds_newest():
    rig = StreamRig(
        lambda event, nth: replace(OK, takes_s=1.0 + nth / 100),
        scaler=NITRO,
        learns={"update_s": 0.0},
        stop={"max_rounds": 1},
    )
    kept: list[DetectorSamples] = []
    rig.detector.select = lambda samples: kept.append(samples) or samples
    rig.loop.run()
    last = np.concatenate([batch.rewards.reshape(-1) for batch in rig.learner.batches[-2:]])
    assert np.array_equal(kept[0].advantages, last.astype(np.float32)), (
        "the fewest updates with subset_size samples"
    )


# Random events


class Killed(BaseException):
    """The process is gone: none of it still runs."""


def anything(stream: random.Random) -> Script:
    """Actors that do everything that actors can do."""
    ways: list[dict[str, Any]] = [
        *[{"status": "error", "submits": None, "error": "RuntimeError: broken joint"}] * 2,
        {"status": "crashed", "submits": None, "error": "killed"},
        {"status": "crashed", "error": "killed"},
        {"status": None, "submits": None},
        {"status": None, "heeds_abandon": False},
        {"submits": lambda event: trajectory(event)[:-3]},
        *[{"submits": closed_trajectory}] * 4,
        *[{}] * 14,
    ]

    def script(event: Mapping[str, Any], nth: int) -> Play:
        play = Play(
            takes_s=stream.choice([0.01, 0.25, 1.0, 1.0, 1.0, 2.0, 7.0]),
            lingers_s=stream.choice([0.0, 0.0, 0.5, 20.0]),
            outcomes=stream.choice([1, 1, 2]),
        )
        return replace(play, **stream.choice(ways))

    return script


@settings(max_examples=100)
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
    """Kills and interrupts, each followed by a resumption. The rig checks reservations, staleness, completeness."""
    stream, records = random.Random(seed), Records(is_bucket=is_bucket)
    most = "actors_fixed" if kind == "fixed" else "actors_max"
    killed_usd = 0.0
    for is_kill, after in [*ends, (False, 10**9)]:
        rig = StreamRig(
            anything(stream),
            records=records,
            learns={"update_s": update_s, "replays_max": replays_max},
            concurrency=concurrency,
            budget={"usd": usd},
            scaler={
                **(NITRO if kind == "nitro" else {"kind": kind}),
                "actors_min": min(2, actors),
                most: actors if kind == "fixed" else max(2, actors),
            },
            algorithm={"staleness_max": staleness_max, "minibatch_steps": minibatch * STEPS},
            actor={"timeout_s": 10},
            fleet={"round_deadline_s": 60},
            patience=Patience(failures_max=1000),
            stop={"max_steps": max_steps},
        )
        if records.ledger:
            rig.resume()
            assert killed_usd <= rig.meter.spent_usd + 1e-9 <= usd + 2e-9
        trained_before = list(rig.learner.trained)
        end_after(rig, after, Killed if is_kill else KeyboardInterrupt)
        try:
            assert rig.loop.run() in ("max_rounds", "budget", "max_steps")
            after = 10**9
            rig.assert_settled()
        except KeyboardInterrupt:
            rig.assert_settled()
        except Killed:
            killed_usd = rig.killed_usd
        for thread in threading.enumerate():
            if thread.name == "detector":
                thread.join(PATIENCE_S)
        assert not rig.fleet.misses
        trained = rig.learner.trained
        assert len(set(trained)) == len(trained)
        assert trained[: len(trained_before)] == trained_before
        assert rig.column("round_index") == list(range(1, len(rig.rows) + 1))
        in_rows = sum(rig.column("env_steps"))
        assert max_steps is None or in_rows <= max_steps
        if records.checkpoint is not None:
            assert in_rows == STEPS * len(records.checkpoint.values["learner"]["trained"])
        assert all(limit <= staleness_max for limit in rig.column("staleness_max"))
        assert sum(rig.column("round_cost_usd")) <= rig.meter.spent_usd + 1e-7
        if after == 10**9:
            break


def end_after(rig: StreamRig, calls: int, error: type[BaseException]) -> None:
    """Raises after this many calls of the parts that a run waits for. A killed process does nothing afterwards."""
    left = calls

    def ending(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if rig.is_shielded and error is KeyboardInterrupt:
                return real(*arguments, **named)
            left -= 1
            if left == 0:
                rig.killed_usd = rig.promised_usd
            if left == 0 and name == "save_ledger":
                worst_usd = rig.model.roles[ACTOR].worst_case_usd()
                rig.killed_usd = rig.meter.spent_usd + rig.fleet.open_count * worst_usd
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
