"""Scalers whose counts depend only on the round's number, each against its rule written out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from runtime.config.loading import experiment_from_tree, load_experiment
from runtime.errors import ExperimentError
from runtime.ports.learning import State
from runtime.ports.scaling import RoundView
from runtime.scaler.fixed import FixedSettings
from runtime.scaler.hydrozoa import HydrozoaSettings
from runtime.scaler.maximal import MaxSettings
from runtime.scaler.permuted import PermutedSettings
from runtime.scaler.schedule import ScheduleSettings
from runtime.settings.scaler import ScalerSettings
from stacks.plan import Plan


def counts(settings: ScalerSettings, rounds: int) -> list[int]:
    """Returns its decision for each round; all of a round's actors are due at once."""
    scaler = settings.make()
    found = [scaler.decide(RoundView(k)).actor_count for k in range(1, rounds + 1)]
    assert found == [scaler.first_wave(k) for k in range(1, rounds + 1)]
    assert scaler.signals == frozenset()
    return found


def recording(path: Path, wanted: list[object]) -> str:
    (path / "rounds.jsonl").write_text(
        "".join(json.dumps({"actor_count_wanted": one}) + "\n" for one in wanted)
    )
    return str(path)


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


def test_max_always_takes_the_most() -> None:
    settings = MaxSettings(actors_min=3, actors_max=9)
    assert counts(settings, 50) == [9] * 50
    assert (settings.smallest_round, settings.mean_actors) == (3, 9)


@pytest.mark.parametrize(
    ("least", "most", "every"), [(8, 64, 10), (1, 5, 1), (3, 3, 2), (8, 1000, 3)]
)
def test_hydrozoa_doubles_every_few_rounds(least: int, most: int, every: int) -> None:
    expected, count = [], least
    for done in range(60):
        if done and done % every == 0:
            count = min(2 * count, most)
        expected.append(count)
    assert (
        counts(HydrozoaSettings(actors_min=least, actors_max=most, doubling_rounds=every), 60)
        == expected
    )


def test_hydrozoas_count_stays_small_for_ever() -> None:
    assert HydrozoaSettings(doubling_rounds=1).make().first_wave(10**12) == 64


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


def test_permuted_takes_each_recorded_count_as_often(tmp_path: Path) -> None:
    recorded = [8, 8, 9, 30, 64, 12, 13]
    path = recording(tmp_path, recorded)
    first, other = (
        counts(PermutedSettings(recorded_run=path, order_seed=seed), 14) for seed in (0, 1)
    )
    for found in (first[:7], first[7:], other[:7], other[7:]):
        assert Counter(found) == Counter(recorded)
    assert len({tuple(found) for found in (recorded, first[:7], first[7:], other[:7])}) == 4
    assert first == counts(PermutedSettings(recorded_run=f"{path}/rounds.jsonl"), 14)


def test_permuted_goes_on_with_the_counts_that_it_began_with(tmp_path: Path) -> None:
    settings = PermutedSettings(recorded_run=recording(tmp_path, list(range(8, 20))))
    expected, state = counts(settings, 12), settings.make().get_state()
    recording(tmp_path, [64])
    resumed = settings.make()
    resumed.set_state(State({}, json.loads(json.dumps(state.values))))
    assert [resumed.first_wave(k) for k in range(1, 13)] == expected


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([], "has no rounds"),
        ([8, 65], "65 actors in its round 2; allowed: scaler.actors_min = 8"),
        ([7], "7 actors in its round 1"),
        ([True], "True actors"),
        (["8"], "'8' actors"),
        (["x" * 10**5], f"'{'x' * 79} actors"),
    ],
)
def test_a_recording_that_does_not_fit_is_refused(
    tmp_path: Path, wanted: list[object], words: str
) -> None:
    with pytest.raises(ExperimentError, match=words):
        PermutedSettings(recorded_run=recording(tmp_path, wanted)).make()


def test_permuted_needs_a_recording_and_this_machine(tmp_path: Path) -> None:
    tree = {
        "environment": {"id": "Pendulum-v1"},
        "budget": {"usd": 9.0},
        "scaler": {"kind": "permuted"},
    }
    with pytest.raises(
        ExperimentError, match=r"scaler.recorded_run = null; allowed: the directory"
    ):
        experiment_from_tree(tree, source="test")
    for bad in ("nowhere", "a\0b", str(tmp_path), "/dev/zero"):
        with pytest.raises(
            ExperimentError, match=r"cannot be read: .*; allowed: the directory of a run"
        ):
            PermutedSettings(recorded_run=bad).make()
    path = tmp_path / "a.yaml"
    path.write_text(
        json.dumps(
            tree | {"scaler": {"kind": "permuted", "recorded_run": recording(tmp_path, [8])}}
        )
    )
    with pytest.raises(
        ExperimentError,
        match=r"scaler\.recorded_run = .* is a file of this machine, which a deployed",
    ):
        Plan.from_context({"experiment": str(path)}.get)
