"""Properties of every scaler: bounds and resumption."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.experiment.scaler import SCALERS
from runtime.records.rows import RoundRow
from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, Scaler
from tests.scaler.schedulers import make_scheduler, row

KINDS = list(SCALERS.settings)
PLAIN = settings(max_examples=30, database=None, derandomize=True)
SMALL: Mapping[str, Any] = {
    "actors_min": 2,
    "actors_max": 6,
    "window_rounds": 3,
    "actors_fixed": 5,
    "schedule": [[1, 2], [2, 5], [3, 4]],
}


@pytest.fixture
def section(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Returns the section ``scaler`` of a kind."""
    make_scheduler().save(tmp_path / "a.safetensors")
    files = {"scheduler": str(tmp_path / "a.safetensors")}
    return lambda kind: {
        "kind": kind,
        **{
            key: value
            for key, value in {**SMALL, **files}.items()
            if key in SCALERS.settings[kind].model_fields and (kind, key) != ("fixed", "actors_max")
        },
    }


numbers = st.one_of(st.none(), st.floats(), st.integers(-(10**9), 10**9))
dollars = st.floats(0, 1e6)
rows = st.builds(row, episode_return_mean=numbers, round_cost_usd=dollars, round_s=dollars)
histories = st.lists(st.tuples(rows, numbers), max_size=8)


def decisions(
    scaler: Scaler, history: list[tuple[RoundRow, Any]], first: int, target: float
) -> list[int]:
    found = []
    for index in range(first, len(history)):
        assert scaler.actors_min <= scaler.first_wave(index + 1) <= scaler.actors_max
        decision = scaler.decide(
            RoundView(
                index + 1,
                [one for one, _ in history[:index]],
                signals=dict.fromkeys(scaler.signals, history[index][1]),
                target_return=target,
            )
        )
        scaler.observe(history[index][0])
        found.append(decision.actor_count)
        assert math.isfinite(decision.boosting_score or 0.0)
    return found


@PLAIN
@pytest.mark.parametrize("kind", KINDS)
@given(history=histories, cut=st.integers(0, 8), target=st.floats(-1e6, 1e6))
def test_bounds_hold_whatever_it_sees_and_a_state_goes_on(
    section: Callable[[str], dict[str, Any]], kind: str, history: list[Any], cut: int, target: float
) -> None:
    settings = SCALERS.choose(section(kind))
    whole, first, second = (settings.make() for _ in range(3))
    assert settings.smallest_round == whole.actors_min <= settings.mean_actors <= whole.actors_max
    assert settings.most_actors == whole.actors_max
    found = decisions(whole, history, 0, target)
    assert all(whole.actors_min <= count <= whole.actors_max for count in found)
    cut = min(cut, len(history))
    began = decisions(first, history[:cut], 0, target)
    second.set_state(State({}, json.loads(json.dumps(first.get_state().values))))
    assert began + decisions(second, history, cut, target) == found
