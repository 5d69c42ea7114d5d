"""Scalers whose counts depend only on the round's number, each against its rule written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.config.loading import load_experiment
from runtime.errors import ExperimentError
from runtime.ports.scaling import RoundView
from runtime.scaler.fixed import FixedSettings
from runtime.scaler.schedule import ScheduleSettings
from runtime.settings.scaler import ScalerSettings


def counts(settings: ScalerSettings, rounds: int) -> list[int]:
    """Returns its decision for each round; all of a round's actors are due at once."""
    scaler = settings.make()
    found = [scaler.decide(RoundView(k)).actor_count for k in range(1, rounds + 1)]
    assert found == [scaler.first_wave(k) for k in range(1, rounds + 1)]
    assert scaler.signals == frozenset()
    return found


def test_fixed_never_changes() -> None:
    settings = FixedSettings(actors_fixed=16, actors_min=4)
    assert counts(settings, 50) == [16] * 50
    assert (settings.make().actors_min, settings.make().actors_max, settings.mean_actors) == (
        4,
        16,
        16,
    )
    few = FixedSettings(actors_min=8, actors_fixed=2).make()
    assert few.actors_min == few.first_wave(1) == 2


def test_a_schedule_holds_until_its_next_pair() -> None:
    settings = ScheduleSettings(schedule=[[1, 8], [3, 32], [4, 16]], actors_min=4)
    assert counts(settings, 6) == [8, 8, 32, 16, 16, 16]
    assert (settings.most_actors, settings.smallest_round) == (32, 4)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("[[2, 8]]", "begins with round 2"),
        ("[[1, 8], [5, 8], [5, 9]]", "round 5 stands after round 5"),
        ("[[1, 8], [5, 8], [4, 9]]", "round 4 stands after round 5"),
        ("[[1, 7]]", "7 actors from round 1 on; allowed: "),
        ("[[1, 65]]", "scaler.actors_max = 64"),
        ("[]", "a list of at least one pair, such as [1, 8]"),
        ("[[1, 8, 9]]", "at least one pair"),
        ("[1, 8]", "at least one pair"),
        ("[[1, 0]]", "at least one pair"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(
    tmp_path: Path, schedule: str, words: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "environment: {id: Pendulum-v1}\nbudget: {usd: 1}\n"
        f"scaler: {{kind: schedule, schedule: {schedule}}}"
    )
    with pytest.raises(ExperimentError, match="scaler.schedule") as refusal:
        load_experiment(path)
    assert words in str(refusal.value)
    assert schedule != "[[1, 0]]" or "1 problem:" in str(refusal.value)
    load_experiment(path, ["scaler.schedule=[[1, 8], [9, 64]]"])
