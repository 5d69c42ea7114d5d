"""The loop with synchronous pacing, on a fleet, a cache and a learner that play a script."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.rollout import OpenEpisode
from runtime.errors import (
    ActorsKeepFailingError,
    BudgetError,
    FleetError,
    NotFiniteError,
)
from runtime.fleet.failures import Patience
from runtime.money.meter import BillingClock
from runtime.records.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint
from runtime.records.events import EventLog
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import RoundView
from runtime.training.evaluations import BestPolicy
from tests.fakes import (
    CRASHED,
    ERROR,
    NEVER_RETURNS,
    OBSERVATION_SIZE,
    OK,
    TIMEOUT,
    FakeCache,
    FakeDetector,
    FakeEvaluator,
    FakeFleet,
    FakeLearner,
    FakeRun,
    ManualClock,
    Play,
    closed_trajectory,
    trajectory,
    trajectory_fields,
)
from tests.fleet.parts import EVENT, STEPS, make_experiment, make_meter, read_events

DEFAULT_PATIENCE = Patience()


class Rig:
    """A round loop on fakes, and its records."""

    def __init__(
        self,
        tmp_path: Path,
        script: Any = None,
        *,
        returns: Sequence[float] = (0.0,),
        ratio: Callable[..., float | None] | None = None,
        metrics: Callable[[int], dict] | None = None,
        update_s: float = 0.25,
        evaluate_s: float = 0.5,
        patience: Patience = DEFAULT_PATIENCE,
        is_billed: bool = False,
        **sections: dict[str, Any],
    ) -> None:
        self.experiment = make_experiment(**sections)
        self.events_path = tmp_path / "events.jsonl"
        self.log: list[Any] = []
        self.rows: list[dict[str, Any]] = []
        self.checkpoints: list[Checkpoint] = []
        self.policies: list[bytes] = []
        self.bests: list[BestPolicy | None] = []
        self.handed_out: list[Checkpoint] = []
        self.ledgers: list[tuple[float, float]] = []
        self.views: list[RoundView] = []
        self.is_shielded = False
        self.clock, self.cache = ManualClock(), FakeCache(self.log)
        self.fleet = FakeFleet(self.cache, self.clock, script, log=self.log)
        self.learner = FakeLearner(self.clock, update_s)
        if metrics:
            self.learner.metrics = metrics
        self.detector = FakeDetector(self.clock, ratio=ratio, log=self.log)
        self.evaluator = FakeEvaluator(self.clock, returns, evaluate_s=evaluate_s)
        billing = BillingClock(self.clock(), now=self.clock) if is_billed else None
        self.meter = make_meter(self.experiment, billing)
        events = EventLog(self.events_path, lambda: "now")
        run = FakeRun(
            self.experiment, self.fleet, self.cache, self.meter, events, self._save_ledger, EVENT
        )
        self.loop = run.loop(
            self.learner,
            self.detector,
            self.evaluator,
            self.clock,
            self._save_round,
            self._shield,
            patience,
        )
        scaler = self.loop.roles.scaling.scaler
        decide = scaler.decide
        scaler.decide = lambda view: (self.views.append(view), decide(view))[1]

    def run(self) -> str:
        return self.loop.run()

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return read_events(self.events_path, kind)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]

    def started(self, round_index: int) -> list[Mapping[str, Any]]:
        """Returns the events of a round's actors in slot order, with retries after the actors that they replace."""
        return sorted(
            (i.event for i in self.fleet.started if i.event["round_index"] == round_index),
            key=lambda event: event["slot"],
        )

    def _save_ledger(self) -> None:
        budget = self.meter.budget
        self.ledgers.append((budget.spent_usd, budget.reserved_usd))
        self.log.append(("ledger", budget.reserved_usd))
        assert budget.spent_usd + budget.reserved_usd <= self.experiment.budget.usd

    def _save_round(
        self, row: RoundRow, checkpoint: Checkpoint, policy: bytes, best: BestPolicy | None
    ) -> None:
        assert self.is_shielded
        self.bests.append(best)
        self.rows.append(json.loads(row.to_json_line()))
        self.policies.append(policy)
        self.checkpoints.append(copy.deepcopy(checkpoint))
        self.handed_out.append(checkpoint)

    @contextmanager
    def _shield(self):
        was_shielded, self.is_shielded = self.is_shielded, True
        yield
        self.is_shielded = was_shielded


def rising(version: int, samples: Any) -> float:
    """Each policy's ratio is the largest so far, so its score is 0 and its round the smallest."""
    return float(version)


def fails(*keys: tuple[int, int, int]) -> Callable[[Mapping[str, Any], int], Play]:
    """Returns plays with errors for these (round, slot, number of the try)."""
    return lambda event, nth: ERROR if (event["round_index"], event["slot"], nth) in keys else OK


def test_a_row_counts_what_pricing_afterwards_needs(tmp_path: Path):
    rig = Rig(
        tmp_path,
        fails((1, 0, 0)),
        ratio=lambda version, samples: 1.0,
        evaluation={"every_rounds": 1},
        actor={"provisioned": 0, "timeout_s": 60},
        stop={"max_rounds": 2},
    )
    rig.run()
    first, second = rig.rows
    assert (first["hessian_products"], second["hessian_products"]) == (None, 5)
    assert second["product_samples"] == len(rig.detector.measured[0][1].advantages)
    assert (first["evaluated_steps"], second["evaluated_steps"]) == (None, 60), "two ended in it"
    for row in rig.rows:
        settings = rig.experiment.algorithm
        assert row["samples_trained"] == settings.passes * row["env_steps"]
        per_pass = math.ceil(row["env_steps"] / settings.minibatch_steps)
        assert row["gradient_steps"] == settings.passes * per_pass
    assert first["lost_steps"] == EVENT["fragment_steps"], "a whole fragment, since it is unknown"
    assert second["lost_steps"] == 0 and second["actors_waited_s"] == 0.0
    assert first["cold_starts"] == first["actor_count"] + 1, "the replacement starts cold, too"
    assert second["cold_starts"] == second["actor_count"] - first["actor_count"]


def test_rewards_are_clipped_for_the_learner_and_not_in_the_statistics(tmp_path: Path):
    rig = Rig(
        tmp_path,
        lambda event, nth: Play(submits=closed_trajectory),
        environment={"preprocessing": "atari"},
        stop={"max_rounds": 1},
    )
    rig.run()
    (batch,) = rig.learner.batches
    assert set(np.unique(batch.rewards)) == {-1.0, 1.0}
    raw = [trajectory_fields(event)["rewards"].sum() for event in rig.started(1)]
    assert rig.rows[0]["episode_return_mean"] == pytest.approx(np.mean(raw))


def test_the_batch_is_in_the_order_of_the_slots(tmp_path: Path):
    rig = Rig(tmp_path, fails((1, 0, 0), (1, 3, 0), (1, 3, 1)), stop={"max_rounds": 1})
    rig.run()
    (batch,) = rig.learner.batches
    assert batch.rewards.shape == (STEPS, 6)
    for slot in range(6):
        expected = trajectory_fields(
            {
                **EVENT,
                "invocation_id": "",
                "episode_id": "",
                "policy_version": 1,
                "round_index": 1,
                "slot": slot,
            }
        )
        assert np.array_equal(batch.rewards[:, slot], expected["rewards"])
        assert np.array_equal(batch.observations[:, slot], expected["observations"])
        assert np.array_equal(
            batch.bootstrap_observations[slot], expected["bootstrap_observations"][0]
        )


# Stopping


@pytest.mark.parametrize(
    "scaler",
    [
        {"kind": "fixed", "actors_fixed": 3, "actors_min": 3},
        {"kind": "nitro", "actors_min": 3, "actors_max": 3},
    ],
)
def test_the_last_round_shrinks_to_the_fragments_that_max_steps_has_room_for(
    tmp_path: Path, scaler: dict[str, Any]
):
    rig = Rig(
        tmp_path,
        scaler=scaler,
        stop={"max_rounds": None, "max_steps": 35},
        evaluation={"every_rounds": 50},
    )
    assert rig.run() == "max_steps"
    assert rig.column("env_steps_total") == [12, 24, 32]
    assert rig.column("actor_count_wanted") == [3, 3, 3]
    assert rig.column("actor_count") == [3, 3, 2]
    (fitted,) = rig.events("round_fitted")
    assert (fitted["round_index"], fitted["wanted"], fitted["granted"]) == (3, 3, 2)
    assert "stop.max_steps" in fitted["reason"]
    assert not rig.events("round_shrunk"), "money has nothing to do with it"
    assert rig.column("evaluation_round") == [None, None, 3], (
        "its policy is evaluated, as the last one's"
    )
    assert rig.learner.progresses == [0.0, 12 / 35, 24 / 35]


def test_it_stops_when_an_evaluation_reaches_the_target(tmp_path: Path):
    rig = Rig(
        tmp_path,
        returns=[1.0, 9.9, 10.0, 99.0],
        stop={"max_rounds": 50, "target_return": 10.0},
        evaluation={"every_rounds": 2},
    )
    assert rig.run() == "target_return"
    assert rig.column("evaluation_return_mean") == [None, None, 1.0, None, 9.9, None, 10.0]
    assert rig.column("evaluation_round") == [None, None, 2, None, 4, None, 6]
    assert rig.policies[-1] == rig.evaluator.weights[-1] != rig.learner.weights(), (
        "the policy that hit is kept"
    )


def test_the_policy_of_the_best_evaluation_is_kept_also_where_two_decide_in_the_last_round(
    tmp_path: Path,
):
    """Evaluations of rounds 2, 4, 6 and 8 decide in rounds 3, 5, 7 and 8."""
    rig = Rig(
        tmp_path,
        returns=[3.0, 7.0, 7.0, 5.0],
        stop={"max_rounds": 8},
        evaluation={"every_rounds": 2},
    )
    rig.run()
    assert [best and (best.return_mean, best.round_index) for best in rig.bests] == [
        None,
        None,
        (3.0, 2),
        (3.0, 2),
        (7.0, 4),
        (7.0, 4),
        (7.0, 4),
        (7.0, 4),
    ], "the first of equal ones"
    assert rig.bests[-1].weights == rig.evaluator.weights[1] != rig.policies[-1]
    both = Rig(tmp_path, returns=[9.0, 5.0], stop={"max_rounds": 2}, evaluation={"every_rounds": 1})
    both.run()
    assert both.column("evaluation_return_mean")[-1] == 5.0
    assert (both.bests[-1].return_mean, both.bests[-1].round_index) == (9.0, 1)


def playing(returns: Sequence[float]) -> Callable[[Mapping[str, Any], int], Play]:
    """Each actor ends one episode, whose return depends on the round."""
    return lambda event, nth: Play(
        submits=lambda event: trajectory(
            event,
            episode_returns=np.array([float(returns[event["round_index"] - 1])]),
            episode_lengths=np.array([3]),
            episode_first_versions=np.array([event["policy_version"]]),
        )
    )


@pytest.mark.parametrize(
    ("sections", "rounds"),
    [
        ({}, [4, 6, 8, 11]),
        ({"stop": {"max_rounds": 11}}, [8, 11]),
        ({"environment": {"id": "Fake-v0", "truncate_at_fragment": True}}, [8, 11]),
    ],
)
def test_with_a_target_evaluations_begin_when_an_episode_is_half_way_there_and_follow_each_other(
    tmp_path: Path, sections: dict[str, Any], rounds: list[int]
):
    rig = Rig(
        tmp_path,
        playing([-300, -250, -290, -200, *[-280] * 7]),
        returns=[-150.0],
        evaluation={"every_rounds": 8},
        **{"stop": {"max_rounds": 11, "target_return": -100.0}, **sections},
    )
    assert rig.run() == "max_rounds"
    assert [one for one in rig.column("evaluation_round") if one] == rounds


@pytest.mark.parametrize(
    ("every_rounds", "rounds", "evaluated"),
    [
        (1, 3, {2: 1, 3: 3}),
        (2, 5, {3: 2, 5: 5}),
        (2, 4, {3: 2, 4: 4}),
        (8, 19, {10: 8, 18: 16, 19: 19}),
        (7, 3, {3: 3}),
        (0, 3, {}),
    ],
)
def test_evaluation_is_due_every_so_often_and_after_the_last_round(
    tmp_path: Path, every_rounds: int, rounds: int, evaluated: dict[int, int]
):
    rig = Rig(tmp_path, stop={"max_rounds": rounds}, evaluation={"every_rounds": every_rounds})
    rig.run()
    found = {
        row["round_index"]: row["evaluation_round"]
        for row in rig.rows
        if row["evaluate_s"] is not None
    }
    assert found == evaluated
    assert [
        row["round_index"] for row in rig.rows if row["evaluation_return_mean"] is not None
    ] == [*evaluated]


# Quorum


@pytest.mark.parametrize(
    ("quorum", "failed", "is_accepted"),
    [
        (0.75, 1, True),
        (0.7501, 1, False),
        (0.75, 2, False),
        (1.0, 1, False),
        (1.0, 0, True),
        (0.0, 3, True),
        (0.0, 4, False),
    ],
)
def test_the_quorum_is_a_share_of_the_started(
    tmp_path: Path, quorum: float, failed: int, is_accepted: bool
):
    def script(event: Mapping[str, Any], nth: int) -> Play:
        return ERROR if event["slot"] < failed else OK

    rig = Rig(
        tmp_path,
        script,
        stop={"max_rounds": 1},
        scaler={"kind": "fixed", "actors_fixed": 4},
        patience=Patience(quorum=quorum, attempts=1, failures_max=1000),
    )
    if is_accepted:
        assert rig.run() == "max_rounds"
        assert rig.column("actors_returned") == [4 - failed]
    else:
        with pytest.raises(ActorsKeepFailingError, match="quorum 3 times"):
            rig.run()
        assert len(rig.events("round_rejected")) == 3
        assert_settled(rig)


def test_a_rejected_round_is_not_trained_on_and_tried_again(tmp_path: Path):
    # Slot 1 of round 2 fails twice, which uses up its tries in the first attempt at the round.
    rig = Rig(
        tmp_path,
        fails((2, 1, 0), (2, 1, 1)),
        scaler={"kind": "fixed", "actors_fixed": 4},
        patience=Patience(quorum=1.0, attempts=2),
        stop={"max_rounds": 3},
    )
    assert rig.run() == "max_rounds"
    assert rig.column("round_index") == [1, 2, 3]
    assert rig.column("convexity_ratio") == [None] * 3 and not rig.detector.measured
    assert [batch.rewards.shape[1] for batch in rig.learner.batches] == [4, 4, 4]
    (rejected,) = rig.events("round_rejected")
    assert (rejected["round_index"], rejected["actor_count"], rejected["actors_returned"]) == (
        2,
        4,
        3,
    )
    ids = [i.invocation_id for i in rig.fleet.started]
    assert len(ids) == len(set(ids)) == 4 + (4 + 1) + 4 + 4
    continued = Counter(event["episode_id"] for event in rig.started(2))
    assert sorted(continued.values()) == [2, 2, 2, 3], "each attempt continues the same episodes"
    assert not continued.keys() & {event["episode_id"] for event in rig.started(3)}
    # Both attempts are billed, and in the row.
    assert rig.rows[1]["spent_usd"] - rig.rows[0]["spent_usd"] == pytest.approx(
        rig.rows[1]["round_cost_usd"], abs=1e-8
    )
    assert rig.rows[1]["actors_cost_usd"] > 2 * rig.rows[0]["actors_cost_usd"]


# Waves, detector, scaler


def test_the_first_wave_runs_before_the_detector_and_the_boost_after(tmp_path: Path):
    rig = Rig(tmp_path, stop={"max_rounds": 2}, ratio=lambda version, samples: 1.0)
    rig.run()
    second = rig.log[rig.log.index(("publish_weights", 2)) :]
    order = [entry for entry in second if entry[0] in ("publish_weights", "start", "measure")]
    # 6·0.96² = 5.5296 actors, and ½.
    assert order == [
        ("publish_weights", 2),
        ("start", (0, 1)),
        ("measure", 2),
        ("start", (2, 3, 4, 5)),
    ]
    assert {event["policy_version"] for event in rig.started(2)} == {2}
    assert rig.column("actor_count") == [6, 6]
    assert rig.column("convexity_ratio") == [None, 1.0]


def test_the_ratio_is_that_of_the_acting_policy_on_the_last_rounds_samples(tmp_path: Path):
    rig = Rig(tmp_path)
    rig.run()
    assert [version for version, _ in rig.detector.measured] == [2, 3, 4]
    for (_, samples), batch in zip(rig.detector.measured, rig.learner.batches, strict=False):
        assert np.array_equal(
            samples.observations, batch.observations.reshape(-1, OBSERVATION_SIZE)[:4]
        )
    assert rig.column("convexity_ratio") == [None] + [
        1.0 + abs(float(samples.advantages.sum())) for _, samples in rig.detector.measured
    ]


# Open episodes across rounds


def follow_episodes(rig: Rig, cache: FakeCache) -> dict[int, dict[int, tuple[int, int]]]:
    """Records, by round and slot, the origin of the episode that each actor continued."""
    seen: dict[int, dict[int, tuple[int, int]]] = {}
    script = rig.fleet.script

    def noting(event: Mapping[str, Any], nth: int) -> Play:
        if event["episode_id"]:
            episode = OpenEpisode.from_bytes(cache.fetch_episode(event["episode_id"]))
            seen.setdefault(event["round_index"], {})[event["slot"]] = (
                int(episode.return_so_far),
                int(episode.observation[0]),
            )
        return script(event, nth)

    rig.fleet.script = noting
    return seen


def test_an_episode_that_always_raises_is_dropped_and_the_run_goes_on(tmp_path: Path):
    # Any actor that continues the open episode of slot 1 of round 1 raises, in any round.
    rig = Rig(
        tmp_path,
        scaler={"kind": "fixed", "actors_fixed": 3},
        patience=Patience(quorum=1.0, attempts=2),
        stop={"max_rounds": 4},
    )
    rig.fleet.script = lambda event, nth: ERROR if event["episode_id"] == "1-1" else OK
    assert rig.run() == "max_rounds"
    (dropped,) = rig.events("episode_dropped")
    assert sum(row["episodes_dropped"] for row in rig.rows) == 1
    assert dropped["episode_id"] == "1-1"
    assert len(rig.events("round_rejected")) == 2
    assert rig.column("actors_failed") == [0, 4, 0, 0]


def test_a_fresh_start_that_always_raises_is_tried_again_with_other_numbers(tmp_path: Path):
    rig = Rig(
        tmp_path,
        scaler={"kind": "fixed", "actors_fixed": 3},
        patience=Patience(quorum=1.0, attempts=2),
        stop={"max_rounds": 2},
    )
    first_seed: list[int] = []

    def raises(event: Mapping[str, Any], nth: int) -> Play:
        first_seed.append(event["seed"])
        if (event["round_index"], event["slot"]) == (2, 0) and nth < 2:
            return CRASHED
        return (
            ERROR
            if (event["round_index"], event["slot"], event["seed"]) == (1, 1, first_seed[0])
            else OK
        )

    rig.fleet.script = raises
    assert rig.run() == "max_rounds"
    assert [event["round_index"] for event in rig.events("round_rejected")] == [1, 2]
    assert len({event["seed"] for event in rig.started(1)}) == 2
    assert {event["seed"] for event in rig.started(2)} == {first_seed[0]}


def test_a_boosts_episodes_survive_the_small_rounds_after_it_oldest_first(tmp_path: Path):
    rig = Rig(tmp_path, ratio=rising, stop={"max_rounds": 9})
    seen = follow_episodes(rig, rig.cache)
    rig.run()
    assert rig.column("actor_count") == [6, 6, 2, 2, 2, 2, 2, 2, 2]
    assert seen.get(1) is None
    assert seen[2] == {slot: (1, slot) for slot in range(6)}
    queue = [(2, slot) for slot in range(6)]
    for round_index in range(3, 10):
        assert seen[round_index] == {0: queue[0], 1: queue[1]}
        queue = queue[2:] + [(round_index, 0), (round_index, 1)]
    assert len(rig.checkpoints[-1].values["episode"]["episode_ids"]) == 6


# Money


def worst_case_usd(actors: int, **sections: dict[str, Any]) -> float:
    meter = make_meter(make_experiment(**sections))
    meter.open_round(actors, smallest=actors)
    return meter.budget.reserved_usd


@pytest.mark.parametrize(
    "script",
    [
        None,
        fails((1, 3, 0), (2, 1, 0), (2, 1, 1)),
        lambda event, nth: TIMEOUT if event["slot"] == 1 and nth == 0 else OK,
    ],
    ids=["no failure", "errors", "time-outs"],
)
def test_what_is_at_stake_is_on_disk_before_any_actor_starts(tmp_path: Path, script: Any):
    """First wave, boost and replacements: whenever the run is killed, the ledger covers everything that it may have
    spent.
    """
    rig = Rig(tmp_path, script, ratio=lambda version, samples: 1.0, stop={"max_rounds": 2})
    real = rig.fleet.start

    def start(invocations: Sequence[Any]) -> None:
        assert (
            sum(rig.ledgers[-1])
            >= rig.meter.budget.spent_usd + rig.meter.budget.reserved_usd - 1e-9
        )
        real(invocations)

    rig.fleet.start = start
    rig.run()
    assert rig.rows[-1]["reserved_usd"] == 0.0


def test_a_boost_that_does_not_fit_is_shrunk(tmp_path: Path):
    usd = worst_case_usd(3) + 1e-6
    rig = Rig(tmp_path, stop={"max_rounds": 1}, budget={"usd": usd})
    assert rig.run() == "max_rounds"
    (row,) = rig.rows
    assert (row["actor_count_wanted"], row["actor_count"], row["actors_returned"]) == (6, 3, 3)
    (shrunk,) = rig.events("round_shrunk")
    assert (shrunk["round_index"], shrunk["wanted"], shrunk["granted"]) == (1, 6, 3)


SHORT: dict[str, Any] = {
    "scaler": {"kind": "fixed", "actors_fixed": 4},
    "actor": {"timeout_s": 2, "provisioned": 0},
    "fleet": {"round_deadline_s": 4},
    "learner": {"update_timeout_s": 4},
    "stop": {"max_rounds": 1000},
}
"""Returns limits with which a budget of twenty rounds holds one."""


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_a_budget_of_twenty_rounds_is_used_and_never_exceeded(
    tmp_path_factory: pytest.TempPathFactory, seed: int
):
    def script(event: Mapping[str, Any], nth: int) -> Play:
        return Play(
            billed_s=random.Random(f"{seed} {event['round_index']} {event['slot']}").uniform(
                0.5, 1.5
            )
        )

    sections = SHORT | {"stop": {"max_rounds": 20}}
    whole = Rig(tmp_path_factory.mktemp("whole"), script, **sections)
    whole.run()
    usd = whole.meter.spent_usd
    rig = Rig(tmp_path_factory.mktemp("twenty"), script, **SHORT, budget={"usd": usd})
    assert rig.run() == "budget"
    assert 0.9 * usd <= rig.meter.spent_usd <= usd
    assert all(spent + held <= usd for spent, held in rig.ledgers)
    factors = [event["factor"] for event in rig.events("limits_tightened")]
    assert factors[-1] < factors[0]
    again = Rig(tmp_path_factory.mktemp("again"), script, **SHORT, budget={"usd": usd})
    again.loop.restore(rig.checkpoints[-1])
    assert again.loop.checkpoint().values["phases"] == rig.checkpoints[-1].values["phases"]
    assert again.run() == "budget"
    assert again.rows == [], "learned limits are kept"


@pytest.mark.parametrize("is_billed", [True, False])
def test_a_round_beyond_its_tightened_limit_is_lost_if_billed_and_never_overspent(
    tmp_path: Path, is_billed: bool
):
    factor, too_long_s = (2.5, 0.8) if is_billed else (1.5, 3.5)
    usd = factor * worst_case_usd(4, **SHORT)
    rig = Rig(tmp_path, **SHORT, budget={"usd": usd}, is_billed=is_billed)
    real, taken_s = rig.learner.update, []

    def update(batch: Any, *, progress: float) -> Any:
        is_tight = any(event["factor"] <= 2.5 for event in rig.events("limits_tightened"))
        rig.learner.update_s = too_long_s if is_tight else 0.25
        taken_s.append(rig.learner.update_s)
        return real(batch, progress=progress)

    rig.learner.update = update
    assert rig.run() == "budget"
    assert rig.checkpoints[-1].round_index == len(rig.rows)
    if not is_billed:
        assert len(rig.rows) == len(taken_s) and not rig.events("round_lost")
        assert rig.meter.spent_usd <= usd
        return
    assert taken_s[-1] == too_long_s
    assert len(rig.rows) == len(taken_s) - 1
    (lost,) = rig.events("round_lost")
    assert (lost["round_index"], rig.meter.reserved_usd) == (len(taken_s), 0.0)
    assert rig.rows[-1]["spent_usd"] < rig.meter.spent_usd <= usd


def test_an_update_beyond_the_experiments_limit_fails_a_run_that_nobody_bills_also_if_it_is_tightened(
    tmp_path: Path,
):
    rig = Rig(tmp_path, **SHORT, budget={"usd": 1.5 * worst_case_usd(4, **SHORT)})
    real = rig.learner.update

    def update(batch: Any, *, progress: float) -> Any:
        is_tight = bool(rig.events("limits_tightened"))
        rig.learner.update_s = 1.0 + rig.meter.limits.update_s if is_tight else 0.25
        return real(batch, progress=progress)

    rig.learner.update = update
    with pytest.raises(BudgetError, match=r"raise learner\.update_timeout_s"):
        rig.run()
    assert not rig.events("round_lost")


# Unplanned ends


def assert_settled(rig: Rig) -> None:
    assert rig.meter.budget.reserved_usd == 0.0
    assert rig.ledgers[-1] == (rig.meter.budget.spent_usd, 0.0)
    assert len(rig.meter.ended) == len(rig.fleet.started)


@pytest.mark.parametrize("where", ["detector", "learner", "evaluator", "fleet"])
def test_an_interrupt_settles_the_round_and_goes_on_up(tmp_path: Path, where: str):
    rig = Rig(
        tmp_path,
        {(0, 0): NEVER_RETURNS} if where == "fleet" else None,
        ratio=rising,
        evaluation={"every_rounds": 2},
    )

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if where == "detector":
        rig.detector.measure = interrupt
    elif where == "learner":
        rig.learner.update = interrupt
    elif where == "evaluator":
        rig.evaluator.result = interrupt
    else:
        real, waits = rig.fleet.wait, itertools.count()
        rig.fleet.wait = lambda timeout_s: interrupt() if next(waits) == 1 else real(timeout_s)
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    assert_settled(rig)
    finished = {"detector": 1, "learner": 0, "evaluator": 2, "fleet": 0}[where]
    assert len(rig.rows) == len(rig.checkpoints) == finished
    assert rig.meter.budget.spent_usd > (rig.rows[-1]["spent_usd"] if rig.rows else 0.0)


def test_an_evaluation_is_waited_for_no_longer_than_is_reserved(tmp_path: Path):
    rig = Rig(
        tmp_path,
        evaluate_s=500.0,
        learner={"update_timeout_s": 120},
        evaluation={"every_rounds": 1},
    )
    began_s = rig.clock()
    with pytest.raises(BudgetError, match="learner.update_timeout_s"):
        rig.run()
    assert rig.clock() - began_s < 500.0


# Checkpoint and resume


@pytest.mark.parametrize("where", ["metrics", "updater"])
def test_training_that_diverges_is_an_error_in_words(tmp_path: Path, where: str):
    def metrics(version: int) -> dict[str, float]:
        if version == 3 and where == "updater":
            raise NotFiniteError("kl of a gradient is inf")
        return {"kl": float("inf")} if version == 3 else {}

    rig = Rig(tmp_path, metrics=metrics)
    with pytest.raises(NotFiniteError, match="diverged in round 2: kl .*is inf. Rewards may be"):
        rig.run()
    assert len(rig.rows) == 1
    assert_settled(rig)


@pytest.mark.parametrize(("after", "returns"), [(1, [2.0, 1.0]), (3, [2.0, 1.0]), (4, [1.0])])
def test_a_restored_run_goes_on_as_if_it_had_never_ended(
    tmp_path: Path, after: int, returns: list[float]
):
    sections = {
        "stop": {"max_rounds": 7},
        "evaluation": {"every_rounds": 3},
        "actor": {"provisioned": 3},
    }
    whole = Rig(tmp_path, returns=[2.0, 1.0], **sections)
    whole.run()
    save_checkpoint(tmp_path / "checkpoints", whole.checkpoints[after - 1])
    rest = Rig(tmp_path, returns=returns, **sections)
    rows = [RoundRow(**row) for row in whole.rows]
    rest.loop.restore(
        load_newest_checkpoint(tmp_path / "checkpoints", lambda *_: None), rows[:after]
    )
    assert rest.loop.roles.progress.round_index == after
    assert rest.loop.best == whole.bests[after - 1]
    rest.run()
    assert whole.bests[-1].return_mean == 2.0, "of round 3"
    assert rest.loop.best == whole.bests[-1]
    assert len(set(whole.column("actor_count"))) > 1, "the detector's ratios distinguish rounds"
    assert rest.rows == whole.rows[after:]
    assert rest.views == whole.views[after:], "the scaler sees the rows from before, too"
    assert [i.event for i in rest.fleet.started] == [
        i.event for i in whole.fleet.started if i.event["round_index"] > after
    ]
    assert rest.meter.get_state() == whole.meter.get_state()
    assert rest.learner.weights() == whole.learner.weights()


def test_a_round_is_saved_beside_the_next_ones_actors_before_anything_is_trained_on(tmp_path: Path):
    rig = Rig(tmp_path, stop={"max_rounds": 3}, scaler={"kind": "fixed", "actors_fixed": 3})
    real_start, real_update, at_start, at_update = rig.fleet.start, rig.learner.update, [], []
    rig.fleet.start = lambda actors: (at_start.append(len(rig.rows)), real_start(actors))
    rig.learner.update = lambda *args, **named: (
        at_update.append(len(rig.rows)),
        real_update(*args, **named),
    )[1]
    rig.run()
    assert (at_start, at_update, len(rig.rows)) == ([0, 0, 1], [0, 1, 2], 3)


def test_a_round_that_is_not_saved_yet_is_saved_whatever_ends_the_run(tmp_path: Path):
    rig = Rig(tmp_path)
    real = rig.cache.publish_weights

    def publish(version: int, weights: bytes) -> None:
        if version == 2:
            raise FleetError("no more")
        real(version, weights)

    rig.cache.publish_weights = publish
    with pytest.raises(FleetError):
        rig.run()
    assert len(rig.rows) == len(rig.checkpoints) == 1
    assert_settled(rig)


def test_a_checkpoint_does_not_change_afterwards(tmp_path: Path):
    rig = Rig(tmp_path)
    rig.run()
    for then, now in zip(rig.checkpoints, rig.handed_out, strict=True):
        assert now.values == then.values
        assert all(np.array_equal(now.arrays[name], array) for name, array in then.arrays.items())
