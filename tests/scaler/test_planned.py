"""Scalers whose counts depend only on the round's number, each against its rule written out."""

from __future__ import annotations

import pytest

from runtime.experiment.scaler import ScalerSettings
from runtime.scaler.fixed import FixedSettings
from runtime.scaler.interfaces import RoundView
from runtime.scaler.schedule import ScheduleSettings


def counts(settings: ScalerSettings, rounds: int) -> list[int]:
    """Returns its decision for each round; all of a round's actors are due at once."""
    scaler = settings.make()
    found = [scaler.decide(RoundView(k)).actor_count for k in range(1, rounds + 1)]
    assert found == [scaler.first_wave(k) for k in range(1, rounds + 1)]
    return found


def test_fixed_never_changes() -> None:
    assert counts(FixedSettings(actors_fixed=16, actors_min=4), 50) == [16] * 50
    assert FixedSettings(actors_min=8, actors_fixed=2).make().actors_min == 2


def test_a_schedule_holds_until_its_next_pair() -> None:
    settings = ScheduleSettings(schedule=[[1, 8], [3, 32], [4, 16]], actors_min=4)
    assert counts(settings, 6) == [8, 8, 32, 16, 16, 16]
    assert (settings.most_actors, settings.smallest_round) == (32, 4)
    assert list(settings.contradictions()) == []


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([[2, 8]], r"has rounds \[2\]; allowed: ascending rounds, each once, the first 1"),
        ([[1, 8], [5, 8], [5, 9]], r"has rounds \[1, 5, 5\]"),
        ([[1, 7], [2, 65]], "7 to 65 actors; allowed: scaler.actors_min = 8 to"),
        ([], "at least 1"),
        ([[1, 8, 9]], "schedule"),
        ([[1, 0]], "greater than or equal to 1"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(
    schedule: list[list[int]], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        for problem in ScheduleSettings(schedule=schedule).contradictions():
            raise ValueError(problem)
