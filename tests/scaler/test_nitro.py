"""Nitro's scaler against §5.3 in exact fractions."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scaler.interfaces import RoundView
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
