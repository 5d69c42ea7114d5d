"""Nitro's scaler against §5.3 in exact fractions."""

from __future__ import annotations

import collections
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.scaler.interfaces import RoundView
from runtime.scaler.nitro import NitroScaler, NitroSettings

PLAIN = settings(max_examples=150, database=None, derandomize=True)


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


@PLAIN
@given(
    st.lists(ratios, min_size=1, max_size=15),
    st.integers(1, 7),
    st.sampled_from([1.0, 0.96, 0.5, 0.999]),
    st.integers(1, 20),
    st.integers(0, 80),
)
def test_equals_the_paper_on_any_sequence(
    history: list[float | None], window_rounds: int, decay_factor: float, actors_min: int, more: int
) -> None:
    scaler = NitroScaler(
        NitroSettings(
            actors_min=actors_min,
            actors_max=actors_min + more,
            window_rounds=window_rounds,
            decay_factor=decay_factor,
        )
    )
    for round_index, ratio in enumerate(history, start=1):
        assert scaler.first_wave(round_index) == actors_min
        decision = scaler.decide(view(round_index, ratio))
        score = exact_score(history[:round_index], window_rounds, decay_factor)
        assert decision.boosting_score == pytest.approx(float(score), rel=1e-9, abs=1e-12)
        assert decision.decay_weight == pytest.approx(decay_factor**round_index, rel=1e-12)
        unclipped = (actors_min + more) * score + Fraction(1, 2)
        if abs(unclipped - round(unclipped)) > 1e-6:
            bounded = min(max(math.floor(unclipped), actors_min), actors_min + more)
            assert decision.actor_count == bounded


def test_the_papers_settings_by_hand() -> None:
    """n = 6, d = 0.96, I_min = 8, I_max = 64, with the ratios of Fig. 8: flat rounds are boosted."""
    scaler = NitroScaler(NitroSettings(actors_min=8, actors_max=64))
    found = [scaler.decide(view(k, ratio)) for k, ratio in enumerate((2.16, 0.78, 3.43, 2.16), 1)]
    scores = [0.96, 0.96**2, 0.0, (3.43 - 2.16) / (3.43 - 0.78) * 0.96**4]
    assert [one.boosting_score for one in found] == pytest.approx(scores)
    assert [one.actor_count for one in found] == [61, 59, 8, 26]


@pytest.mark.parametrize(("actors_max", "expected"), [(5, 3), (7, 4), (6, 3), (1, 1)])
def test_halves_round_up(actors_max: int, expected: int) -> None:
    """⌊I_max·S + ½⌋, not Python's rounding to even: 2.5 becomes 3."""
    scaler = NitroScaler(NitroSettings(actors_min=1, actors_max=actors_max, decay_factor=0.5))
    assert scaler.decide(view(1, None)).actor_count == expected


def artifacts_counts(ratios: list[float]) -> list[int]:
    """Returns the counts of rounds from the second, by the lines of the authors' Nitro.py at commit 2c725a9."""
    history: collections.deque[float] = collections.deque(maxlen=6)
    counts = []
    for round_id, hessian_eigen_ratio in enumerate(ratios, start=1):
        decay_factor = 0.96**round_id
        R = hessian_eigen_ratio * decay_factor
        history.append(R)
        spread = np.max(history) - np.min(history)
        boost_score = (R - np.min(history)) / spread if len(history) > 1 else 1.0
        fewest = int(np.clip(64 * decay_factor**round_id, 8, 64))
        counts.append(int(np.clip(64 * boost_score, fewest, 64)))
        history.append(hessian_eigen_ratio)
    return counts


@PLAIN
@given(st.lists(st.tuples(st.floats(-9.0, 0.5), st.floats(0.0, 9.0)), min_size=1, max_size=20))
def test_the_artifacts_rule_is_that_of_the_authors_code(
    spectra: list[tuple[float, float]],
) -> None:
    """Eigenvalues of the maximized objective; the authors' are of the loss, widened by 0.01."""
    scaler = NitroSettings(rule="artifact").make()
    first = scaler.decide(RoundView(1, signals=dict.fromkeys(scaler.signals)))
    assert first.actor_count == 16
    found = []
    for played, (eigenvalue_min, eigenvalue_max) in enumerate(spectra, start=1):
        signals = {"eigenvalue_min": eigenvalue_min, "eigenvalue_max": eigenvalue_max}
        found.append(scaler.decide(RoundView(played + 1, signals=signals)).actor_count)
    assert found == artifacts_counts([-(-low + 0.01) / (-high - 0.01) for low, high in spectra])
