"""A scaler is asked within its bounds, and an exception of a custom one is reported in a line."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.errors import RunError
from runtime.scaler.interfaces import RoundView, ScalingDecision
from runtime.training.roles import Scaling


class Own:
    """A scaler that distributes twelve actors, and promises two to four."""

    actors_min, actors_max, signals = 2, 4, ()

    def __init__(self, share: int, answer: Callable[[int], Any] = ScalingDecision) -> None:
        self._share, self._answer = share, answer

    def decide(self, view: RoundView) -> Any:
        return self._answer(12 // self._share)


def scaling(scaler: Any, kind: str) -> Scaling:
    meter: Any = SimpleNamespace(free_usd=1.0)
    return Scaling(scaler, kind, meter, target_return=None, budget_usd=1.0, seed=0)


@pytest.mark.parametrize(
    ("share", "kind", "error", "words"),
    [
        (
            2,
            "own:Settings",
            RunError,
            "^scaler.kind = own:Settings decides on 6 actors; allowed: 2 to 4",
        ),
        (12, "own:Settings", RunError, "decides on 1 actors; allowed: 2 to 4"),
        (0, "own:Settings", RunError, "own:Settings cannot decide: ZeroDivisionError: .*, line"),
        (0, "nitro", ZeroDivisionError, "by zero"),
    ],
)
def test_a_custom_scalers_mistake_is_told_in_a_line_and_a_built_in_ones_with_its_traceback(
    share: int, kind: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        scaling(Own(share), kind).decide(1, None)
    with pytest.raises(RunError, match="cannot decide: AttributeError: 'int' object"):
        scaling(Own(4, int), "own:Settings").decide(1, None)
    assert scaling(Own(4), kind).decide(1, None).actor_count == 3
