"""The two scalers that read the gradient noise scale, each against its formula."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from runtime.ports.scaling import RoundView
from runtime.scaler.kungfu import SETTLED_ROUNDS, KungFuSettings
from runtime.scaler.noise_scale import NoiseScaleSettings, cheapest_batch, dollars
from tests.scaler.rows import row


def view(scale: float | None, *rows: Any, **options: Any) -> RoundView:
    return RoundView(len(rows) + 1, rows, signals={"noise_scale": scale}, **options)


def test_kungfu_follows_the_growth_of_the_noise_scale_upwards() -> None:
    early = [1.0] * (SETTLED_ROUNDS - 1)
    scales = [None, 200.0, 100.0, math.nan, 300.0, -5.0, 299.0, 500.0, math.inf, 499.0, 1e9, 1.0]
    scaler, expected, known = KungFuSettings().make(), [], []
    for scale in scales:
        known += [scale] if scale and math.isfinite(scale) and scale > 0 else []
        growth = max(known) / known[0] if known else 1
        expected.append(min(math.floor(8 * growth + 0.5), 64))
    found = []
    for round_index, scale in enumerate(early + scales, start=1):
        assert scaler.first_wave(round_index) == (found or [8])[-1], "its actors are due at once"
        found.append(
            scaler.decide(RoundView(round_index, signals={"noise_scale": scale})).actor_count
        )
    assert found[: len(early)] == [8] * len(early), "it is mostly noise yet"
    assert found[len(early) :] == expected == [8, 8, 8, 8, 12, 12, 12, 20, 20, 20, 64, 64]


ROUND = {
    "round_cost_usd": 10.0,
    "actors_cost_usd": 4.0,
    "learner_cost_usd": 3.0,
    "infrastructure_cost_usd": 1.0,
    "provisioned_cost_usd": 2.0,
    "modelled_round_s": 9.0,
    "modelled_evaluate_s": 1.0,
    "modelled_learn_s": 2.5,
    "round_s": 5.0,
    "collect_s": 2.0,
    "env_steps": 2048,
    "actors_returned": 8,
    "actor_count_wanted": 11,
}


def test_dollars_of_a_round_and_of_a_step() -> None:
    """A quarter of the fixed cost is for the update; by the clock half of it; if actors are free, all but a tenth."""
    assert dollars([row(**ROUND)] * 3, is_by_the_clock=False) == pytest.approx((5.0, 5.0 / 2048))
    assert dollars([row(**ROUND)], is_by_the_clock=True) == pytest.approx((4.0, 6.0 / 2048))
    on_learner = ROUND | {
        "actors_cost_usd": 0.0,
        "provisioned_cost_usd": 0.0,
        "round_cost_usd": 4.0,
    }
    assert dollars([row(**on_learner)], is_by_the_clock=True) == pytest.approx((0.4, 3.6 / 2048))
    mixed = [
        row(**ROUND),
        row(**ROUND | {"modelled_evaluate_s": None, "modelled_round_s": 10.0, "env_steps": 1024}),
    ]
    assert dollars(mixed, is_by_the_clock=False) == pytest.approx((5.0, 10.0 / 3072))
    assert dollars([row()], is_by_the_clock=False) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("scale", "stays", "step"), [(500.0, 5.0, 0.002), (1e4, 0.1, 0.01), (3.0, 2.0, 1.0)]
)
def test_no_other_batch_is_cheaper(scale: float, stays: float, step: float) -> None:
    best = cheapest_batch(scale, stays, step)
    assert best == pytest.approx(math.sqrt(scale * stays / step))
    costs = [
        (1 + scale / batch) * (stays + step * batch) for batch in (best, best * 0.99, best * 1.01)
    ]
    assert min(costs) == costs[0]
    assert cheapest_batch(scale, stays, 0.0) == math.inf
    assert cheapest_batch(scale, 0.0, step) == 0.0


def test_it_asks_for_the_actors_that_sample_the_cheapest_batch() -> None:
    """B* = √(B_noise · 5 / (5 / 2048)) = √(2048 · B_noise), and an actor samples 256."""
    scaler, one = NoiseScaleSettings().make(), row(**ROUND)
    assert scaler.decide(view(5000.0)).actor_count == 8, "dollars are unknown"
    found = [
        scaler.decide(view(scale, one, one)).actor_count
        for scale in (0.0, 2048.0, 8192.0, 20000.0, 1e9)
    ]
    assert found == [8, 8, 16, math.floor(math.sqrt(2048 * 20000) / 256 + 0.5), 64]
    assert all(low <= high for low, high in itertools.pairwise(found))
    for unknown in (None, math.nan, math.inf):
        assert scaler.decide(view(unknown, one)).actor_count == 11, (
            "unchanged from the previous round"
        )
    by_the_clock = scaler.decide(view(20000.0, one, is_by_the_clock=True)).actor_count
    assert by_the_clock == math.floor(math.sqrt(20000 * 4 * 2048 / 6) / 256 + 0.5)
