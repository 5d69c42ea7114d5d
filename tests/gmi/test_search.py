"""The search for a layout: what it measures, when a row ends, and what is lost by measuring less."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from runtime.gmi import search as searching
from runtime.gmi.search import Layout, Profile, fastest, is_faster, layouts, search

SEEDS = range(1000, 1020)
"""Seeds 0 to 99 were used to choose `SATURATED_POINTS`; these are held out."""
REGRET_MAX = 0.05
ALPHA = 0.1
MIB = 2**20
MACHINES = ((8, 2), (16, 4), (64, 8), (60, 16), (256, 32))
"""Actors and cores."""


def profile(samples_per_s: float, memory_mib: float = 100) -> Profile:
    return Profile(samples_per_s, round(memory_mib * MIB))


# Cost of measuring less


def made(family: str, actors: int, cores: int, seed: int) -> Callable[..., Profile | None]:
    """Returns a made-up machine; ``noise`` of 1 measures as it would, and of 0 tells the truth.

    Families: an environment more in an instance gains less and less (saturating), until nothing fits (bound); instances
    share a bandwidth (crowded); a shared processor (noisy), where a vector brings nothing (flat), or costs something
    before it pays off (stepped).
    """
    random = np.random.default_rng((seed, actors, cores))
    half, crowding, cost = random.uniform((0.5, 0.02, 1.3), (8.0, 0.3, 2.0))
    growth = {"saturating": 0.3, "bound": 0.2}.get(family, 0.002)
    errors = 0.03 * random.standard_normal((cores + 1, actors + 1))

    def measured(instances: int, environments: int, *, noise: float = 1.0) -> Profile | None:
        memory = 1.0 + growth * environments
        if family == "bound" and instances * memory > 1.5 * cores:
            return None
        speed = (1.0 + half) * environments / (environments + half)
        if family == "flat" or (family == "stepped" and environments == 1):
            speed = 1.0
        elif family == "stepped":
            speed = environments / (cost + 0.4 * (environments - 1))
        if family == "crowded":
            speed /= 1.0 + crowding * (instances - 1)
        error = noise * errors[instances, environments] * (family in ("noisy", "flat", "stepped"))
        share = math.ceil(actors / instances)
        return profile(5000.0 * speed * actors / share * math.exp(error), 300.0 * memory)

    return measured


@pytest.mark.parametrize("family", ["saturating", "bound", "crowded", "noisy", "flat", "stepped"])
def test_what_is_found_is_nearly_as_fast_as_what_exhaustive_search_finds(family: str) -> None:
    """Noise misleads both: their choices depend on measured speeds, but count at their true ones."""
    for (actors, cores), seed in itertools.product(MACHINES, SEEDS):
        machine, rows = made(family, actors, cores, seed), layouts(actors, cores)
        points = [(instances, count) for instances, counts in rows for count in counts]
        every = {point: found for point in points if (found := machine(*point))}
        chosen, best = fastest(search(machine, rows, ALPHA)), fastest(every)
        speeds = [machine(*point, noise=0.0) for point in (chosen, best)]
        assert speeds[0] and speeds[1]
        assert speeds[0].samples_per_s >= (1.0 - REGRET_MAX) * speeds[1].samples_per_s, (
            cores,
            seed,
        )


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_a_layout_that_was_only_lucky_is_not_faster(gain: float) -> None:
    random = np.random.default_rng(0)

    def machine(instances: int, environments: int) -> Profile:
        return profile((1.0 + gain * (instances == 2)) * math.exp(0.03 * random.standard_normal()))

    faster = [is_faster(machine, (2, 1), (1, 1)) for _ in range(400)]
    assert sum(faster) < 40 if gain == 0.0 else sum(faster) > 390
    assert not is_faster(lambda *_: None, (2, 1), (1, 1))
    assert is_faster(lambda instances, _: profile(1.0) if instances else None, (2, 1), (0, 0))


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
    assert layouts(40_000, 2, are_worlds=True) == [(1, [16_384]), (2, [16_384])], (
        "the most that a file may request"
    )


def row_of(*row: Profile | None) -> dict[Layout, Profile]:
    """Searches one instance with 1, 2, 4, … environments, as many as there are points."""
    counts = [2**power for power in range(len(row))]
    return search(lambda _, count: row[counts.index(count)], [(1, counts)], ALPHA)


def test_a_row_ends_after_two_saturated_points_and_a_point_that_is_not_begins_anew() -> None:
    less, more = 1 + ALPHA - 0.01, 1 + ALPHA + 0.01
    row = [profile(100, 100), profile(100 * less, 200), profile(100 * less * more, 400)]
    row += [profile(10, 800), profile(9, 1600)]
    assert list(row_of(*row, profile(10_000)).values()) == row


def test_what_cannot_run_is_skipped() -> None:
    """A point is compared with the last one that runs, and memory that does not grow costs nothing."""
    found = row_of(
        None, profile(100, 100), None, profile(120, 110), profile(120, 120), None, profile(130, 120)
    )
    assert [environments for _, environments in found] == [2, 8, 16, 64]
    assert fastest(found) == (1, 64)
    assert search(lambda *_: None, [(1, [1])], ALPHA) == {}
    rows = layouts(4, 4)
    several = search(lambda instances, _: profile(100) if instances > 1 else None, rows, ALPHA)
    assert {instances for instances, _ in several} == {4, 2}


def test_numbers_that_cannot_win_are_left_out() -> None:
    """Eight instances run at 5.6 times the speed of one, so curves up to five times slower are covered."""
    speeds = {1: 100.0, 8: 560.0, 7: 490.0, 6: 420.0}
    found = search(lambda instances, _: profile(speeds[instances]), layouts(64, 8), ALPHA)
    assert fastest(found) == (8, 1)
    assert {instances for instances, _ in found} == {1, 8, 7, 6}


# The paper's own reading: a larger num_env has a larger batch

NUM_ENVS = [2**power for power in range(7, 15)]


def algorithm_2(profile_of: Callable[[int, int], Profile | None], alpha: float) -> list[Layout]:
    """Returns the measurements of Algorithm 2, line by line."""
    asked = []
    for instances in range(10, 0, -1):
        pre_top = pre_mem = 0.0
        for num_env in NUM_ENVS:
            if (measured := profile_of(instances, num_env)) is None:
                continue
            asked.append((instances, num_env))
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
    if instances * memory > 40e9:
        return None
    speed = 60e3 * share * num_env / (num_env + 400 * share)
    return Profile(instances * speed, round(memory))


def test_the_rows_and_the_stop_are_those_of_algorithm_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SATURATED_POINTS", 1)
    rows = [(instances, NUM_ENVS) for instances in range(10, 0, -1)]
    for alpha in (0.5, ALPHA):
        found = search(ant, rows, alpha)
        assert list(found) == algorithm_2(ant, alpha)
    assert {environments for instances, environments in found if instances == 1} == set(
        NUM_ENVS[:-1]
    ), "8,192 are measured, and are too many"
    assert 3 <= fastest(found)[0] < 10
