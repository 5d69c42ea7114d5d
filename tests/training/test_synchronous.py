"""The loop with synchronous pacing, on a fleet, a cache and a learner that play a script."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.rollout import OpenEpisode
from runtime.errors import ActorsKeepFailingError, BudgetError, FleetError, NotFiniteError
from runtime.fleet.failures import Patience
from runtime.records.checkpoint import load_newest_checkpoint, save_checkpoint
from runtime.records.rows import RoundRow
from tests.fakes import (
    CRASHED,
    ERROR,
    NEVER_RETURNS,
    OBSERVATION_SIZE,
    OK,
    ManualClock,
    Play,
    closed_trajectory,
    trajectory,
    trajectory_fields,
)
from tests.fleet.parts import EVENT, STEPS
from tests.training.rig import Rig, worst_case_usd

FOUR = {"kind": "fixed", "actors_fixed": 4}
STRICT = Patience(quorum=1.0, attempts=2)


def rising(version: int, samples: Any) -> float:
    """Each policy's ratio is the largest so far, so its score is 0 and its round the smallest."""
    return float(version)


def fails(*keys: tuple[int, int, int]) -> Callable[[Mapping[str, Any], int], Play]:
    """Returns plays with errors for these (round, slot, number of the try)."""
    return lambda event, nth: ERROR if (event["round_index"], event["slot"], nth) in keys else OK


def test_a_row_counts_what_pricing_afterwards_needs():
    rig = Rig(
        fails((1, 0, 0)),
        ratio=lambda version, samples: 1.0,
        evaluation={"every_rounds": 1},
        actor={"provisioned": 0, "timeout_s": 60},
        stop={"max_rounds": 2},
    )
    rig.loop.run()
    assert rig.column("hessian_products") == [None, 5]
    assert rig.column("product_samples") == [None, len(rig.detector.measured[0][1].advantages)]
    assert rig.column("evaluated_steps") == [None, 60], "two ended in it"
    settings = rig.experiment.algorithm
    for row in rig.rows:
        assert row["samples_trained"] == settings.passes * row["env_steps"]
        per_pass = math.ceil(row["env_steps"] / settings.minibatch_steps)
        assert row["gradient_steps"] == settings.passes * per_pass
    assert rig.column("lost_steps") == [EVENT["fragment_steps"], 0], "a whole one, if unknown"
    first, second = rig.column("actor_count")
    assert rig.column("cold_starts") == [first + 1, second - first], "a replacement starts cold"


def test_the_batch_is_in_the_order_of_the_slots_and_only_the_learner_sees_clipped_rewards():
    fields: dict[int, Any] = {}

    def play(event: Mapping[str, Any], nth: int) -> Play:
        fields[event["slot"]] = trajectory_fields(event)
        return ERROR if (event["slot"], nth) in ((0, 0), (3, 0), (3, 1)) else OK

    rig = Rig(play, stop={"max_rounds": 1})
    rig.loop.run()
    (batch,) = rig.learner.batches
    assert batch.rewards.shape == (STEPS, 6)
    for slot, expected in fields.items():
        assert np.array_equal(batch.rewards[:, slot], expected["rewards"])
        last = expected["bootstrap_observations"][0]
        assert np.array_equal(batch.bootstrap_observations[slot], last)
    atari = Rig(
        lambda event, nth: Play(submits=closed_trajectory),
        environment={"preprocessing": "atari"},
        stop={"max_rounds": 1},
    )
    atari.loop.run()
    assert set(np.unique(atari.learner.batches[0].rewards)) == {-1.0, 1.0}
    raw = [trajectory_fields(event)["rewards"].sum() for event in atari.started(1)]
    assert atari.column("episode_return_mean") == [pytest.approx(np.mean(raw))]


# Stopping and evaluating


@pytest.mark.parametrize("kind", ["fixed", "nitro"])
def test_the_last_round_shrinks_to_the_fragments_that_max_steps_has_room_for(kind: str):
    most = "actors_fixed" if kind == "fixed" else "actors_max"
    rig = Rig(
        scaler={"kind": kind, most: 3, "actors_min": 3},
        stop={"max_rounds": None, "max_steps": 35},
        evaluation={"every_rounds": 50},
    )
    assert rig.loop.run() == "max_steps"
    assert rig.column("env_steps_total") == [12, 24, 32]
    assert rig.column("actor_count_wanted") == [3, 3, 3]
    (fitted,) = rig.events("round_fitted")
    assert (fitted["round_index"], fitted["wanted"], fitted["granted"]) == (3, 3, 2)
    assert not rig.events("round_shrunk"), "money has nothing to do with it"
    assert rig.column("evaluation_round") == [None, None, 3], "its policy is evaluated as the last"
    assert rig.learner.progresses == [0.0, 12 / 35, 24 / 35]


def test_it_stops_when_an_evaluation_reaches_the_target_with_the_policy_that_hit():
    rig, resumed = (
        Rig(
            returns=returns,
            stop={"max_rounds": 50, "target_return": target},
            evaluation={"every_rounds": 2},
        )
        for returns, target in (([1.0, 9.9, 10.0, 99.0], 10.0), ([9.5], 9.5))
    )
    assert rig.loop.run() == "target_return"
    assert rig.column("evaluation_return_mean") == [None, None, 1.0, None, 9.9, None, 10.0]
    assert rig.column("evaluation_round") == [None, None, 2, None, 4, None, 6]
    assert rig.saved[-1][2] == rig.evaluator.weights[-1] != rig.learner.weights()
    resumed.loop.restore(rig.saved[5][0])
    assert resumed.loop.run() == "target_return"
    assert resumed.column("round_index") == [7], "round 4's policy would do now, but is gone"


@pytest.mark.parametrize(
    ("returns", "every_rounds", "best"),
    [([3.0, 7.0, 7.0, 5.0], 2, [None, None, 2, 2, 4, 4, 4, 4]), ([9.0, 5.0], 7, [None] * 6 + [8])],
)
def test_the_first_of_the_best_evaluated_policies_is_kept(
    returns: list[float], every_rounds: int, best: list[int | None]
):
    """Evaluations of rounds 2, 4, 6 and 8 decide in rounds 3, 5, 7 and 8; those of 7 and 8 both in 8."""
    rig = Rig(returns=returns, stop={"max_rounds": 8}, evaluation={"every_rounds": every_rounds})
    rig.loop.run()
    assert [saved[3] and saved[3].round_index for saved in rig.saved][: len(best) - 1] == best[:-1]
    assert rig.loop.best.return_mean == max(returns)
    assert rig.loop.best.weights == rig.evaluator.weights[returns.index(max(returns))]
    assert rig.rows[-1]["evaluation_return_mean"] == returns[-1]


@pytest.mark.parametrize(
    ("sections", "rounds"),
    [
        ({}, [4, 6, 8, 11]),
        ({"stop": {"max_rounds": 11}}, [8, 11]),
        ({"environment": {"id": "Fake-v0", "truncate_at_fragment": True}}, [8, 11]),
    ],
)
def test_with_a_target_evaluations_begin_when_an_episode_is_half_way_there_and_follow_each_other(
    sections: dict[str, Any], rounds: list[int]
):
    returns = [-300, -250, -290, -200, *[-280] * 7]

    def ended(event: Mapping[str, Any]) -> bytes:
        return trajectory(
            event,
            episode_returns=np.array([float(returns[event["round_index"] - 1])]),
            episode_lengths=np.array([3]),
            episode_first_versions=np.array([event["policy_version"]]),
        )

    rig = Rig(
        lambda event, nth: Play(submits=ended),
        returns=[-150.0],
        evaluation={"every_rounds": 8},
        **{"stop": {"max_rounds": 11, "target_return": -100.0}, **sections},
    )
    assert rig.loop.run() == "max_rounds"
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
    every_rounds: int, rounds: int, evaluated: dict[int, int]
):
    rig = Rig(stop={"max_rounds": rounds}, evaluation={"every_rounds": every_rounds})
    rig.loop.run()
    assert evaluated == {
        row["round_index"]: row["evaluation_round"]
        for row in rig.rows
        if row["evaluate_s"] is not None and row["evaluation_return_mean"] is not None
    }


# Quorum


@pytest.mark.parametrize(
    ("quorum", "failed", "is_accepted"),
    [(0.75, 1, True), (0.7501, 1, False), (1.0, 0, True), (0.0, 3, True), (0.0, 4, False)],
)
def test_the_quorum_is_a_share_of_the_started(quorum: float, failed: int, is_accepted: bool):
    rig = Rig(
        lambda event, nth: ERROR if event["slot"] < failed else OK,
        stop={"max_rounds": 1},
        scaler=FOUR,
        patience=Patience(quorum=quorum, attempts=1, failures_max=1000),
    )
    if is_accepted:
        assert rig.loop.run() == "max_rounds"
        assert rig.column("actors_returned") == [4 - failed]
        return
    with pytest.raises(ActorsKeepFailingError, match="quorum 3 times"):
        rig.loop.run()
    assert len(rig.events("round_rejected")) == 3
    rig.assert_settled()


def test_a_rejected_round_is_not_trained_on_and_tried_again():
    """Slot 1 of round 2 fails twice, which uses up its tries in the first attempt at the round."""
    rig = Rig(fails((2, 1, 0), (2, 1, 1)), scaler=FOUR, patience=STRICT, stop={"max_rounds": 3})
    assert rig.loop.run() == "max_rounds"
    assert [batch.rewards.shape[1] for batch in rig.learner.batches] == [4, 4, 4]
    assert [view.round_index for view in rig.views] == [1, 2, 3], "a later attempt asks nobody"
    (rejected,) = rig.events("round_rejected")
    assert (rejected["round_index"], rejected["actor_count"]) == (2, 4)
    assert rejected["actors_returned"] == 3
    ids = [i.invocation_id for i in rig.fleet.started]
    assert len(ids) == len(set(ids)) == 4 + (4 + 1) + 4 + 4
    continued = Counter(event["episode_id"] for event in rig.started(2))
    assert sorted(continued.values()) == [2, 2, 2, 3], "each attempt continues the same episodes"
    assert not continued.keys() & {event["episode_id"] for event in rig.started(3)}
    first, second, _ = rig.rows
    assert second["spent_usd"] - first["spent_usd"] == pytest.approx(
        second["round_cost_usd"], abs=1e-8
    ), "both attempts are billed, and in the row"
    assert second["actors_cost_usd"] > 2 * first["actors_cost_usd"]


@pytest.mark.parametrize("is_continued", [True, False])
def test_what_always_raises_is_dropped_or_begun_with_other_numbers(is_continued: bool):
    """Whoever continues the open episode of slot 1 of round 1 raises, or whoever starts there with the first seed."""
    first_seed: list[int] = []

    def play(event: Mapping[str, Any], nth: int) -> Play:
        first_seed.append(event["seed"])
        place = (event["round_index"], event["slot"])
        if place == (2, 0) and nth < 2 and not is_continued:
            return CRASHED
        is_cursed = place == (1, 1) and event["seed"] == first_seed[0]
        return ERROR if (event["episode_id"] == "1-1" if is_continued else is_cursed) else OK

    rig = Rig(
        play,
        scaler={"kind": "fixed", "actors_fixed": 3},
        patience=STRICT,
        stop={"max_rounds": 4},
    )
    assert rig.loop.run() == "max_rounds"
    seeds = [len({event["seed"] for event in rig.started(number)}) for number in (1, 2)]
    if is_continued:
        assert [event["episode_id"] for event in rig.events("episode_dropped")] == ["1-1"]
        assert sum(rig.column("episodes_dropped")) == 1
        assert rig.column("actors_failed") == [0, 4, 0, 0]
    else:
        assert [event["round_index"] for event in rig.events("round_rejected")] == [1, 2]
        assert seeds == [2, 1], "a crash says nothing about the numbers"


# Waves, detector, scaler, open episodes


def test_the_first_wave_runs_before_the_detector_and_the_boost_after():
    rig = Rig(stop={"max_rounds": 2}, ratio=lambda version, samples: 1.0)
    rig.loop.run()
    second = rig.log[rig.log.index(("publish_weights", 2)) :]
    # 6·0.96² = 5.5296 actors, and ½.
    assert [one for one in second if one[0] in ("publish_weights", "start", "measure")] == [
        ("publish_weights", 2),
        ("start", (0, 1)),
        ("measure", 2),
        ("start", (2, 3, 4, 5)),
    ]
    assert {event["policy_version"] for event in rig.started(2)} == {2}
    assert rig.column("actor_count") == [6, 6]


def test_the_ratio_is_that_of_the_acting_policy_on_the_last_rounds_samples():
    rig = Rig()
    rig.loop.run()
    assert [version for version, _ in rig.detector.measured] == [2, 3, 4]
    for (_, samples), batch in zip(rig.detector.measured, rig.learner.batches, strict=False):
        seen = batch.observations.reshape(-1, OBSERVATION_SIZE)[:4]
        assert np.array_equal(samples.observations, seen)
    assert rig.column("convexity_ratio") == [None] + [
        1.0 + abs(float(samples.advantages.sum())) for _, samples in rig.detector.measured
    ]
    assert rig.column("eigenvalue_max") == rig.column("convexity_ratio")
    assert rig.column("eigenvalue_min") == [None, -1.0, -1.0, -1.0]


def test_a_boosts_episodes_survive_the_small_rounds_after_it_oldest_first():
    seen: dict[int, dict[int, tuple[int, int]]] = {}

    def noting(event: Mapping[str, Any], nth: int) -> Play:
        if event["episode_id"]:
            episode = OpenEpisode.from_bytes(rig.cache.fetch_episode(event["episode_id"]))
            origin = int(episode.return_so_far), int(episode.observation[0])
            seen.setdefault(event["round_index"], {})[event["slot"]] = origin
        return OK

    rig = Rig(noting, ratio=rising, stop={"max_rounds": 9})
    rig.loop.run()
    assert rig.column("actor_count") == [6, 6, 2, 2, 2, 2, 2, 2, 2]
    assert rig.column("boosting_score") == pytest.approx([0.96, 0.96**2] + 7 * [0.0])
    assert rig.column("decay_weight") == pytest.approx([0.96**number for number in range(1, 10)])
    assert 1 not in seen and seen[2] == {slot: (1, slot) for slot in range(6)}
    queue = [(2, slot) for slot in range(6)]
    for round_index in range(3, 10):
        assert seen[round_index] == {0: queue[0], 1: queue[1]}
        queue = queue[2:] + [(round_index, 0), (round_index, 1)]


# Money

SHORT: dict[str, Any] = {
    "scaler": FOUR,
    "actor": {"timeout_s": 2, "provisioned": 0},
    "fleet": {"round_deadline_s": 4},
    "learner": {"update_timeout_s": 4},
    "stop": {"max_rounds": 1000},
}
"""Returns limits with which a budget of twenty rounds holds one."""


@pytest.mark.parametrize(("scaler", "wanted"), [({}, 6), (FOUR | {"actors_min": 2}, 4)])
def test_a_boost_or_first_wave_that_does_not_fit_is_shrunk_to_what_the_budget_holds(
    scaler: dict[str, Any], wanted: int
):
    """After a first wave that the budget has cut, nothing more starts."""
    usd = worst_case_usd(3, scaler=scaler) + 1e-6
    rig = Rig(stop={"max_rounds": 1}, budget={"usd": usd}, scaler=scaler)
    assert rig.loop.run() == "max_rounds"
    assert (rig.column("actor_count_wanted"), rig.column("actor_count")) == ([wanted], [3])
    (shrunk,) = rig.events("round_shrunk")
    assert (shrunk["round_index"], shrunk["wanted"], shrunk["granted"]) == (1, wanted, 3)
    assert len(rig.fleet.started) == 3


def test_a_budget_that_holds_no_round_is_told():
    scaler = FOUR | {"actors_min": 4}
    rig = Rig(scaler=scaler, budget={"usd": worst_case_usd(3, scaler=scaler)})
    assert rig.loop.run() == "budget"
    (exhausted,) = rig.events("budget_exhausted")
    assert (exhausted["round_index"], exhausted["wanted"], rig.fleet.started) == (1, 4, [])


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_a_budget_of_twenty_rounds_is_used_and_never_exceeded(seed: int):
    def script(event: Mapping[str, Any], nth: int) -> Play:
        stream = random.Random(f"{seed} {event['round_index']} {event['slot']}")
        return Play(billed_s=stream.uniform(0.5, 1.5))

    whole = Rig(script, **SHORT | {"stop": {"max_rounds": 20}})
    whole.loop.run()
    usd = whole.meter.spent_usd
    rig = Rig(script, **SHORT, budget={"usd": usd})
    assert rig.loop.run() == "budget"
    assert 0.9 * usd <= rig.meter.spent_usd <= usd
    assert len(rig.events("limits_tightened")) == 1
    again = Rig(script, **SHORT, budget={"usd": usd})
    again.loop.restore(rig.records.checkpoint)
    learned = [one.loop.checkpoint().values["phases"] for one in (rig, again)]
    assert learned[0] == learned[1]
    assert again.loop.run() == "budget"
    assert again.rows == [], "learned limits are kept"


@pytest.mark.parametrize(("is_billed", "rounds"), [(True, 3), (False, 1.5)])
def test_a_short_budget_tightens_reservations_where_nothing_is_billed_and_never_a_clock(
    is_billed: bool, rounds: float
):
    usd = rounds * worst_case_usd(4, is_billed=is_billed, **SHORT)
    rig = Rig(**SHORT, budget={"usd": usd}, is_billed=is_billed)
    real = rig.learner.update

    def update(batch: Any, *, progress: float) -> Any:
        # Far longer than tightened limits, and within the file's own.
        is_slow = len(rig.rows) > 3 and (is_billed or bool(rig.events("limits_tightened")))
        rig.learner.update_s = 3.5 if is_slow else 0.25
        return real(batch, progress=progress)

    rig.learner.update = update
    assert rig.loop.run() == "budget"
    assert max(rig.column("learn_s")) == 3.5
    assert bool(rig.events("limits_tightened")) == (not is_billed)
    assert rig.meter.spent_usd <= usd and len(rig.rows) > 4
    assert rig.rows[-1]["spent_usd"] == pytest.approx(rig.meter.spent_usd, abs=1e-4)


# Unplanned ends


@pytest.mark.parametrize("where", ["detector", "learner", "evaluator", "fleet"])
def test_an_interrupt_settles_the_round_and_goes_on_up(where: str):
    script = {(0, 0): NEVER_RETURNS} if where == "fleet" else None
    rig = Rig(script, ratio=rising, evaluation={"every_rounds": 2})

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    real, waits = rig.fleet.wait, itertools.count()
    match where:
        case "detector":
            rig.detector.measure = interrupt
        case "learner":
            rig.learner.update = interrupt
        case "evaluator":
            rig.evaluator.result = interrupt
        case _:
            rig.fleet.wait = lambda timeout_s: interrupt() if next(waits) == 1 else real(timeout_s)
    with pytest.raises(KeyboardInterrupt):
        rig.loop.run()
    rig.assert_settled()
    assert len(rig.meter.ended) == len(rig.fleet.started)
    finished = {"detector": 1, "learner": 0, "evaluator": 2, "fleet": 0}[where]
    assert len(rig.saved) == finished
    assert rig.meter.spent_usd > (rig.rows[-1]["spent_usd"] if rig.rows else 0.0)


@pytest.mark.parametrize("algorithm", ["ppo", "impact"])
@pytest.mark.parametrize(("update_s", "evaluate_s"), [(0.25, 500.0), (500.0, 0.5)])
def test_an_update_or_evaluation_beyond_what_is_reserved_ends_the_run(
    algorithm: str, update_s: float, evaluate_s: float
):
    rig = Rig(
        evaluate_s=evaluate_s,
        learns={"update_s": update_s},
        algorithm={"kind": algorithm},
        evaluation={"every_rounds": 1},
        stop={"max_rounds": 1},
    )
    with pytest.raises(BudgetError, match="learner.update_timeout_s"):
        rig.loop.run()
    assert rig.rows == [] and rig.meter.reserved_usd == 0.0
    limit_s = rig.meter.limits.update_s
    assert update_s > limit_s or rig.clock() - ManualClock().now_s < evaluate_s, (
        "it waits no longer"
    )
    assert limit_s * 0.08925 / 3600 < rig.meter.spent_usd, "it is paid as far as it was reserved"


@pytest.mark.parametrize(("detect_s", "update_s", "evaluate_s"), [(80, 50, 1), (1, 80, 50)])
def test_detection_update_and_evaluation_share_the_reserved_time(
    detect_s: float, update_s: float, evaluate_s: float
):
    rig = Rig(evaluate_s=evaluate_s, learns={"update_s": 0.25}, evaluation={"every_rounds": 2})
    measure = rig.detector.measure

    def slow(problem: Any) -> Any:
        rig.clock.advance(detect_s)
        rig.learner.update_s = update_s
        return measure(problem)

    rig.detector.measure = slow
    assert rig.meter.limits.update_s == 120
    with pytest.raises(BudgetError, match="learner.update_timeout_s"):
        rig.loop.run()
    assert len(rig.rows) == (1 if detect_s == 80 else 2)


@pytest.mark.parametrize("where", ["metrics", "updater"])
def test_training_that_diverges_is_an_error_in_words(where: str):
    def metrics(version: int) -> dict[str, float]:
        if version == 3 and where == "updater":
            raise NotFiniteError("kl of a gradient is inf")
        return {"kl": float("inf")} if version == 3 else {}

    rig = Rig(learns={"metrics": metrics})
    with pytest.raises(NotFiniteError, match="diverged in round 2: kl .*is inf. Rewards may be"):
        rig.loop.run()
    assert len(rig.rows) == 1
    rig.assert_settled()


# Checkpoint and resume


@pytest.mark.parametrize(("after", "returns"), [(1, [2.0, 1.0]), (3, [2.0, 1.0]), (4, [1.0])])
def test_a_restored_run_goes_on_as_if_it_had_never_ended(
    tmp_path: Path, after: int, returns: Sequence[float]
):
    sections = {
        "stop": {"max_rounds": 7},
        "evaluation": {"every_rounds": 3},
        "actor": {"provisioned": 3},
    }
    whole, rest = Rig(returns=[2.0, 1.0], **sections), Rig(returns=returns, **sections)
    whole.loop.run()
    for then, now, *_ in whole.saved:
        assert now.values == then.values, "a checkpoint does not change afterwards"
        assert all(np.array_equal(now.arrays[name], one) for name, one in then.arrays.items())
    save_checkpoint(tmp_path, whole.saved[after - 1][0])
    rest.records.rows = whole.rows[:after]
    rest.loop.restore(
        load_newest_checkpoint(tmp_path, lambda *_: None), [RoundRow(**row) for row in rest.rows]
    )
    assert rest.loop.best == whole.saved[after - 1][3]
    rest.loop.run()
    assert rest.loop.best == whole.loop.best and whole.loop.best.return_mean == 2.0, "of round 3"
    assert len(set(whole.column("actor_count"))) > 1, "the detector's ratios distinguish rounds"
    assert rest.rows == whole.rows
    assert rest.views == whole.views[after:], "the scaler sees the rows from before, too"
    assert [i.event for i in rest.fleet.started] == [
        i.event for i in whole.fleet.started if i.event["round_index"] > after
    ]
    assert rest.meter.get_state() == whole.meter.get_state()
    assert rest.learner.weights() == whole.learner.weights()


def test_a_resumption_with_no_round_left_tells_that_an_evaluation_is_dropped():
    whole, rest = (
        Rig(stop={"max_rounds": rounds}, evaluation={"every_rounds": 4}) for rounds in (5, 4)
    )
    whole.loop.run()
    rest.loop.restore(whole.saved[3][0])
    assert rest.loop.run() == "max_rounds"
    (dropped,) = rest.events("evaluation_dropped")
    assert dropped["policy_round"] == 4 and not whole.events("evaluation_dropped")


def test_a_round_is_saved_beside_the_next_ones_actors_before_anything_is_trained_on():
    rig = Rig(stop={"max_rounds": 3}, scaler={"kind": "fixed", "actors_fixed": 3})
    order: list[tuple[str, int]] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: (order.append((name, len(rig.rows))), real(*args, **named))[1]

    rig.fleet.start = noted("start", rig.fleet.start)
    rig.learner.update = noted("update", rig.learner.update)
    rig.loop.run()
    expected = [("start", 0), ("update", 0), ("start", 0), ("update", 1), ("start", 1)]
    assert order == [*expected, ("update", 2)] and len(rig.rows) == 3


def test_a_round_that_is_not_saved_yet_is_saved_whatever_ends_the_run():
    rig = Rig()
    real = rig.cache.publish_weights

    def publish(version: int, weights: bytes) -> None:
        if version == 2:
            raise FleetError("no more")
        real(version, weights)

    rig.cache.publish_weights = publish
    with pytest.raises(FleetError):
        rig.loop.run()
    assert len(rig.saved) == 1
    rig.assert_settled()
