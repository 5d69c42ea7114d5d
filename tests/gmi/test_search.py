"""The search for a layout: what it measures, how it scores, when a row ends, and the total cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.gmi import search as searching
from runtime.gmi.search import (
    Found,
    Layout,
    Profile,
    layouts,
    search,
    search_layout,
)
from tests.gmi.curves import FAMILIES, MACHINES, made, regret, searched

SEEDS = range(1000, 1020)
"""Seeds 0 to 99 were used to choose `SATURATED_POINTS`; these are held out."""
REGRET_MAX = 0.05
SATURATION = 0.1
MIB = 2**20


def profile(
    samples_per_s: float, memory_mib: float = 100, *, round_s: float | None = None
) -> Profile:
    return Profile(samples_per_s, round(memory_mib * MIB), "mpr", 0.0, round_s)


def searched_row(*row: Profile | None) -> Found:
    """Searches one instance with 1, 2, 4, … environments, as many as there are points."""
    return search_layout(
        lambda _, environments: row[environments.bit_length() - 1],
        actors=2 ** (len(row) - 1),
        fragment_steps=10,
        instances_max=1,
        saturation=SATURATION,
    )


def places(found: Found) -> list[tuple[int, int]]:
    return [(point.instances, point.environments) for point in found.points]


# Cost of measuring less


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_found_is_nearly_as_fast_as_what_exhaustive_search_finds(family: str) -> None:
    for actors, cores in MACHINES:
        for seed in SEEDS:
            truth, measured = made(actors, cores, seed, family)
            found = searched(measured, actors=actors, cores=cores)
            assert regret(found, measured, truth, actors=actors) <= REGRET_MAX, (
                actors,
                cores,
                seed,
            )


def test_fewer_points_are_measured_where_environments_bring_nothing() -> None:
    _, measured = made(256, 32, 1000, "flat")
    assert len(searched(measured, actors=256, cores=32).points) < len(measured) / 3


# Points measured, and ends of rows


def test_one_instance_is_first_and_then_the_most_and_environments_double_up_to_the_largest_share() -> (
    None
):
    assert layouts(20, 8) == [
        (1, [1, 2, 4, 8, 16, 20]),
        (7, [1, 2, 3]),
        (5, [1, 2, 4]),
        (4, [1, 2, 4, 5]),
        (3, [1, 2, 4, 7]),
        (2, [1, 2, 4, 8, 10]),
    ], "8 have the same largest share as 7: three"
    assert layouts(2, 64) == [(1, [1, 2]), (2, [1])]
    assert [counts[-1] for _, counts in layouts(40_000, 2)] == [16_384, 16_384], (
        "the most that a file may request"
    )


def test_a_row_ends_after_two_saturated_points_and_a_point_that_is_not_begins_anew() -> None:
    less, more = 1 + SATURATION - 0.01, 1 + SATURATION + 0.01
    row: list[Profile | None] = [
        profile(100, 100),
        profile(100 * less, 200),
        profile(100 * less * more, 400),
        profile(10, 800),
        profile(9, 1600),
    ]
    found = searched_row(*row, profile(10_000))
    assert [point.profile for point in found.points] == row


def test_what_cannot_run_is_told_and_skipped() -> None:
    found = searched_row(
        None, profile(100, 100), None, profile(120, 110), profile(120, 120), None, profile(120, 130)
    )
    assert found.points[3].saturation == pytest.approx(2.0), "since the last one that runs"
    assert found.layout == Layout(1, 8, "mpr")
    none = search_layout(
        lambda *_: None, actors=4, fragment_steps=10, instances_max=2, saturation=SATURATION
    )
    assert (none.best, none.layout) == (None, None)


def test_instances_are_tried_though_one_alone_cannot_run() -> None:
    found = search_layout(
        lambda instances, _: None if instances == 1 else profile(100),
        actors=4,
        fragment_steps=10,
        instances_max=4,
        saturation=SATURATION,
    )
    assert found.layout == Layout(4, 1, "mpr")
    assert {instances for instances, _ in places(found)} == {1, 4, 2}


def test_numbers_that_cannot_win_are_left_out() -> None:
    """Eight instances run at 5.6 times the speed of one, so curves up to five times slower are covered."""
    found = search_layout(
        lambda instances, _: profile(100 if instances == 1 else 70),
        actors=64,
        fragment_steps=10,
        instances_max=8,
        saturation=SATURATION,
    )
    assert found.layout == Layout(8, 1, "mpr")
    assert {instances for instances, _ in places(found)} == {1, 8, 7, 6}


# Scores of points


def test_a_round_takes_as_long_as_its_largest_share_and_the_reductions() -> None:
    found = search_layout(
        lambda instances, _: Profile(100.0, MIB, "har", 0.0 if instances == 1 else 1.0),
        actors=8,
        fragment_steps=50,
        instances_max=3,
        saturation=SATURATION,
    )
    speeds = {point.instances: point.samples_per_s for point in found.points}
    assert speeds == {
        1: 100.0,
        3: pytest.approx(8 * 50 / (3 * 50 / 100 + 1)),
        2: pytest.approx(2 * 100 / (1 + 1.0 / (4 * 50 / 100))),
    }, "with even shares, the paper's: top · n / (1 + COM / (BW · T))"
    assert found.layout == Layout(3, 1, "har")


def test_the_time_of_a_whole_round_counts_more_than_what_is_derived() -> None:
    found = searched_row(profile(100), profile(1000, 101, round_s=4.0), profile(50, round_s=2.0))
    assert [point.samples_per_s for point in found.points] == [pytest.approx(100.0), 10.0, 20.0]


# The paper's own reading: a larger num_env has a larger batch

NUM_ENVS = [2**power for power in range(7, 15)]


def algorithm_2(
    profile_of: Callable[[int, int], Profile | None], alpha: float
) -> list[tuple[int, int]]:
    """Returns the measurements of Algorithm 2, line by line."""
    asked = []
    for instances in range(10, 0, -1):
        pre_top = pre_mem = 0.0
        for num_env in NUM_ENVS:
            asked.append((instances, num_env))
            if (measured := profile_of(instances, num_env)) is None:
                continue
            top, mem = measured.samples_per_s, measured.memory_bytes
            if pre_top == pre_mem == 0:
                pre_top, pre_mem = top, mem
                continue
            saturation = ((top - pre_top) / pre_top) / ((mem - pre_mem) / pre_mem)
            pre_top, pre_mem = top, mem
            if saturation < alpha:
                break
    return asked


def ant(instances: int, num_env: int) -> Profile | None:
    """As in Figure 10: up to 8,192 environments, throughput gains diminish while memory finally almost doubles."""
    memory = 2.5e9 + 0.9e6 * num_env
    share = 1.0 / max(1.0, instances / 2.5)  # From 2.5 instances on there are no spare resources.
    return (
        None
        if instances * memory > 40e9
        else Profile(60e3 * share * num_env / (num_env + 400 * share), round(memory), "har", 1e-3)
    )


def test_the_rows_and_the_stop_are_those_of_algorithm_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SATURATED_POINTS", 1)
    gpus = 4

    def estimate(instances: int, measured: Profile) -> float:
        return gpus * instances * measured.samples_per_s / (1.0 + measured.reduction_s)

    rows = [(instances, NUM_ENVS) for instances in range(10, 0, -1)]
    for alpha in (0.5, SATURATION):
        found = search(ant, rows, estimate, alpha)
        assert places(found) == algorithm_2(ant, alpha)
    assert {environments for instances, environments in places(found) if instances == 1} == set(
        NUM_ENVS[:-1]
    ), "8,192 are measured, and are too many"
    assert any(point.profile is None for point in found.points)
    assert found.best is not None and 3 <= found.best.instances < 10
