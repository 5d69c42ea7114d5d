"""A scaler is asked within its bounds, and an exception of a custom one is reported in a line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runtime.errors import RunError
from runtime.scaler.interfaces import RoundView, ScalingDecision
from runtime.training.roles import Scaling


class Own:
    """A scaler that distributes twelve actors, and promises two to four."""

    actors_min, actors_max, signals = 2, 4, ()

    def __init__(self, share: int) -> None:
        self._share = share

    def decide(self, view: RoundView) -> ScalingDecision:
        return ScalingDecision(12 // self._share)


def scaling(scaler: Any, kind: str) -> Scaling:
    money: Any = SimpleNamespace(meter=SimpleNamespace(free_usd=1.0, is_billed=False))
    experiment: Any = SimpleNamespace(
        scaler=SimpleNamespace(kind=kind),
        stop=SimpleNamespace(target_return=None),
        budget=SimpleNamespace(usd=1.0),
    )
    return Scaling(scaler, money, experiment)


@pytest.mark.parametrize(("share", "count"), [(2, 6), (12, 1)])
def test_a_scaler_that_leaves_its_bounds_ends_the_run(share: int, count: int) -> None:
    with pytest.raises(
        RunError,
        match=f"^scaler.kind = own:Settings decides on {count} actors; allowed: 2 to 4, its",
    ):
        scaling(Own(share), "own:Settings").decide(1, None)
    assert scaling(Own(4), "own:Settings").decide(1, None).actor_count == 3


def test_what_an_own_scaler_raises_is_told_with_its_line() -> None:
    with pytest.raises(
        RunError, match=r"^scaler.kind = own:Settings cannot decide: ZeroDivisionError: .*, line"
    ):
        scaling(Own(0), "own:Settings").decide(1, None)


def test_a_defect_of_a_built_in_scaler_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        scaling(Own(0), "nitro").decide(1, None)
