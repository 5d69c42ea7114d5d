"""Nitro's scaler against §5.3 in exact fractions."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.ports.learning import State
from runtime.ports.scaling import RoundView
from runtime.scaler.nitro import NitroScaler, NitroSettings

PLAIN = settings(max_examples=150, database=None, derandomize=True)


def nitro(
    *, actors_min: int = 8, actors_max: int = 64, window_rounds: int = 6, decay_factor: float = 0.96
) -> NitroScaler:
    return NitroScaler(
        NitroSettings(
            actors_min=actors_min,
            actors_max=actors_max,
            window_rounds=window_rounds,
            decay_factor=decay_factor,
        )
    )


def view(round_index: int, ratio: float | None) -> RoundView:
    return RoundView(round_index, signals={"convexity_ratio": ratio})


def through_json(state: State) -> State:
    """Converts through JSON, as a checkpoint does."""
    return State(state.arrays, json.loads(json.dumps(state.values)))


def exact_score(history: list[float | None], window_rounds: int, decay_factor: float) -> Fraction:
    """Returns S_k of the last round of ``history`` (R_1 … R_k, None for no ratio), by §5.3 and the issue's rules."""
    decay = Fraction(decay_factor) ** len(history)
    latest = history[-1]
    if latest is None:
        return decay
    window = [Fraction(ratio) for ratio in history if ratio is not None][-window_rounds:]
    if max(window) == min(window):
        return decay
    return (max(window) - Fraction(latest)) / (max(window) - min(window)) * decay


ratios = st.one_of(st.none(), st.floats(0.01, 100.0), st.sampled_from([0.78, 2.16, 3.43]))
histories = st.lists(ratios, min_size=1, max_size=15)


@PLAIN
@given(
    histories,
    st.integers(1, 7),
    st.sampled_from([1.0, 0.96, 0.5, 0.999]),
    st.integers(1, 20),
    st.integers(0, 80),
)
def test_equals_the_paper_on_any_sequence(
    history: list[float | None], window_rounds: int, decay_factor: float, actors_min: int, more: int
) -> None:
    scaler = nitro(
        actors_min=actors_min,
        actors_max=actors_min + more,
        window_rounds=window_rounds,
        decay_factor=decay_factor,
    )
    for round_index, ratio in enumerate(history, start=1):
        decision = scaler.decide(view(round_index, ratio))
        score = exact_score(history[:round_index], window_rounds, decay_factor)
        assert decision.boosting_score == pytest.approx(float(score), rel=1e-9, abs=1e-12)
        assert decision.decay_weight == pytest.approx(decay_factor**round_index, rel=1e-12)
        assert 0.0 <= decision.boosting_score <= decision.decay_weight <= 1.0
        unclipped = (actors_min + more) * score + Fraction(1, 2)
        if abs(unclipped - round(unclipped)) > 1e-6:
            assert decision.actor_count == min(
                max(math.floor(unclipped), actors_min), actors_min + more
            )
        assert actors_min <= decision.actor_count <= actors_min + more


def test_the_papers_settings_by_hand() -> None:
    """n = 6, d = 0.96, I_min = 8, I_max = 64, with the ratios of Fig. 8."""
    scaler = nitro()
    first, second, third = (scaler.decide(view(k, r)) for k, r in ((1, 2.16), (2, 0.78), (3, 3.43)))
    assert (first.boosting_score, first.actor_count) == (pytest.approx(0.96), 61)
    assert (second.boosting_score, second.actor_count) == (pytest.approx(0.96**2), 59)
    assert (third.boosting_score, third.actor_count) == (0.0, 8)
    fourth = scaler.decide(view(4, 2.16))
    assert fourth.boosting_score == pytest.approx((3.43 - 2.16) / (3.43 - 0.78) * 0.96**4)
    assert fourth.actor_count == round(64 * (3.43 - 2.16) / (3.43 - 0.78) * 0.96**4) == 26
    assert fourth.decay_weight == pytest.approx(0.96**4)


@pytest.mark.parametrize("ratio", [None, 0.5, 3.0])
def test_round_one_has_nothing_to_compare_with(ratio: float | None) -> None:
    decision = nitro(decay_factor=0.9).decide(view(1, ratio))
    assert decision.boosting_score == pytest.approx(0.9)
    assert decision.decay_weight == pytest.approx(0.9)
    assert decision.actor_count == math.floor(64 * 0.9 + 0.5)


def test_a_flat_window_scores_the_decay_alone() -> None:
    scaler = nitro(decay_factor=0.5)
    assert [scaler.decide(view(k, 1.5)).boosting_score for k in (1, 2, 3)] == pytest.approx(
        [0.5, 0.25, 0.125]
    )


def test_a_window_of_one_is_always_flat() -> None:
    scaler = nitro(window_rounds=1, decay_factor=0.5)
    assert [
        scaler.decide(view(k, r)).boosting_score for k, r in ((1, 1.0), (2, 9.0), (3, 2.0))
    ] == pytest.approx([0.5, 0.25, 0.125])


def test_null_scores_the_decay_alone_and_does_not_enter_the_window() -> None:
    """If a missing ratio counted in the window, or pushed another one out, the next round would score differently."""
    without, with_nulls = (
        nitro(window_rounds=3, decay_factor=1.0),
        nitro(window_rounds=3, decay_factor=1.0),
    )
    for round_index, ratio in enumerate((1.0, 4.0), start=1):
        without.decide(view(round_index, ratio))
        with_nulls.decide(view(round_index, ratio))
    for round_index in (3, 4, 5):
        assert with_nulls.decide(view(round_index, None)).boosting_score == 1.0
    assert without.decide(view(6, 2.0)).boosting_score == pytest.approx(2.0 / 3.0)
    assert with_nulls.decide(view(6, 2.0)).boosting_score == pytest.approx(2.0 / 3.0)


def test_the_window_forgets_the_oldest_of_n_plus_one() -> None:
    scaler = nitro(window_rounds=3, decay_factor=1.0)
    for round_index, ratio in enumerate((100.0, 1.0, 3.0), start=1):
        scaler.decide(view(round_index, ratio))
    assert scaler.decide(view(4, 2.0)).boosting_score == pytest.approx(0.5)


def test_the_present_ratio_is_in_its_own_window() -> None:
    """A new lowest ratio scores exactly 1·d^k and a new highest exactly 0, never outside [0, 1]."""
    scaler = nitro(decay_factor=1.0)
    scores = [
        scaler.decide(view(k, r)).boosting_score
        for k, r in ((1, 2.0), (2, 1.0), (3, 5.0), (4, 0.5), (5, 6.0))
    ]
    assert scores == [1.0, 1.0, 0.0, 1.0, 0.0]


def test_the_lowest_ratio_gets_the_most_actors() -> None:
    """The sign: a low R is a flat surface, and flat surfaces are boosted (§5.2)."""
    scaler = nitro(decay_factor=1.0)
    scaler.decide(view(1, 1.0))
    scaler.decide(view(2, 3.0))
    state = scaler.get_state()
    counts = []
    for ratio in (1.0, 1.5, 2.0, 2.5, 3.0):
        scaler.set_state(state)
        counts.append(scaler.decide(view(3, ratio)).actor_count)
    assert counts == [64, 48, 32, 16, 8]


@pytest.mark.parametrize(("actors_max", "expected"), [(5, 3), (7, 4), (6, 3), (1, 1)])
def test_halves_round_up(actors_max: int, expected: int) -> None:
    """⌊I_max·S + ½⌋, not Python's rounding to even: 2.5 becomes 3."""
    scaler = nitro(actors_min=1, actors_max=actors_max, decay_factor=0.5)
    assert scaler.decide(view(1, None)).actor_count == expected


def test_late_rounds_fall_to_actors_min() -> None:
    scaler = nitro(decay_factor=0.5)
    assert [scaler.decide(view(k, None)).actor_count for k in (1, 2, 3, 4, 400)] == [
        32,
        16,
        8,
        8,
        8,
    ]


@PLAIN
@given(histories, st.integers(0, 15))
def test_a_state_carried_over_continues_the_sequence(history: list[float | None], cut: int) -> None:
    cut = min(cut, len(history))
    whole, first, second = (nitro(window_rounds=4) for _ in range(3))
    expected = [whole.decide(view(k, r)) for k, r in enumerate(history, start=1)]
    got = [first.decide(view(k, r)) for k, r in enumerate(history[:cut], start=1)]
    second.set_state(through_json(first.get_state()))
    got += [second.decide(view(k, r)) for k, r in enumerate(history[cut:], start=cut + 1)]
    assert got == expected


def test_a_state_does_not_change_afterwards() -> None:
    scaler = nitro()
    scaler.decide(view(1, 1.0))
    state = scaler.get_state()
    kept = json.dumps(state.values)
    scaler.decide(view(2, 2.0))
    assert json.dumps(state.values) == kept


def test_actors_min_are_due_before_the_ratio_is_known() -> None:
    scaler = nitro(actors_min=5)
    assert [scaler.first_wave(k) for k in (1, 2, 50)] == [5, 5, 5]
    assert scaler.signals == {"convexity_ratio"}
    assert (scaler.actors_min, scaler.actors_max) == (5, 64)
    assert scaler.get_state() == nitro().get_state()


def test_make_scaler_follows_the_experiment() -> None:
    made = NitroSettings(
        kind="nitro", actors_min=3, actors_max=9, window_rounds=2, decay_factor=1.0
    ).make()
    assert isinstance(made, NitroScaler)
    assert made.first_wave(1) == made.actors_min == 3
    assert [
        made.decide(view(k, r)).actor_count for k, r in ((1, 100.0), (2, 1.0), (3, 3.0), (4, 2.0))
    ] == [9, 9, 3, 9]
