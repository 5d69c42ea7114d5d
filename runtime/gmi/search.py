"""Finds by measuring the best number of instances for a machine, and of environments that each plays at once.

Paper: GMI-DRL §5.2, Algorithm 2. There is one row for each number of instances. Each point of a row has twice as many
environments as the one before, until more memory hardly increases throughput.

Departure: The experiment sets a round's samples, since the batch belongs to the algorithm and not the machine. A layout
only decides how they are shared out, and its score is the speed of whole rounds. The paper leaves open: here every
point that runs is scored, including a row's first and last; memory that does not grow costs nothing.
Departure: A row ends after two saturated points in a row instead of one, which could be noise or the step from a
single environment to a vector. One instance is measured first: n of them are at most n times as fast, and rows that
cannot win are left out. In CartPole two environments in lock-step are 5 % slower than one, and eight are 54 % faster:
the paper's rule ends 35 % below the best layout. With two points nothing was lost on 6,000 synthetic curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

SATURATED_POINTS = 2
"""Consecutive saturated points that end a row."""
ENVIRONMENTS_MAX = 16_384
"""Maximum environments that an instance plays at once."""
REPEATS = 3
"""Measurements of each of two layouts that are compared."""
_HEADROOM = 1.1
"""How much faster an instance may seem among others than alone, because measurements vary."""


@dataclass(frozen=True)
class Profile:
    """Measurements of a layout.

    Attributes:
        samples_per_s: Speed of all instances, in whole rounds.
        memory_bytes: Memory of one instance.
    """

    samples_per_s: float
    memory_bytes: int


Layout = tuple[int, int]
"""A number of instances, and of environments that each plays at once."""
Profiler = Callable[[int, int], Profile | None]
"""Measures a layout. Returns None if it cannot run."""
Row = tuple[int, Sequence[int]]
"""A number of instances, and ascending numbers of environments to try with it."""


def search(profile: Profiler, rows: Iterable[Row], saturation: float) -> dict[Layout, Profile]:
    """Measures rows of layouts; returns those that run, in this order.

    Args:
        profile: Measures a layout.
        rows: Rows in the order of measuring.
        saturation: α: a point is saturated if throughput has grown by less than this fraction of memory's growth, both
            relative.
    """
    measured: dict[Layout, Profile] = {}
    for instances, counts in rows:
        speeds = [point.samples_per_s for point in measured.values()]
        alone = [point.samples_per_s for (count, _), point in measured.items() if count == 1]
        if alone and instances * max(alone) * _HEADROOM < max(speeds):
            continue
        before: Profile | None = None
        saturated = 0
        for environments in counts:
            point = profile(instances, environments)
            if point is None:
                continue
            measured[instances, environments] = point
            is_saturated = before is not None and _saturation(before, point) < saturation
            saturated = saturated + 1 if is_saturated else 0
            if saturated == SATURATED_POINTS:
                break
            before = point
    return measured


def fastest(measured: dict[Layout, Profile]) -> Layout:
    """Returns the layout with the most samples per second, the earliest if tied."""
    return max(measured, key=lambda layout: measured[layout].samples_per_s)


def is_faster(profile: Profiler, layout: Layout, other: Layout) -> bool:
    """Measures two layouts in turns; returns whether each time the first is faster than the other ever was.

    Of equal layouts, measured three times each, one in twenty would be. The fastest of a search is often only lucky.
    """
    turns = [(profile(*layout), profile(*other)) for _ in range(REPEATS)]
    speeds, others = zip(*turns, strict=True)
    return min(map(_speed, speeds)) > max(map(_speed, others))


def layouts(actors: int, instances_max: int, *, are_worlds: bool = False) -> list[Row]:
    """Returns the useful layouts for this many fragments: one instance first, then the maximum down to two.

    Of several numbers of instances with the same largest share, only the smallest is included. An instance never plays
    more environments at once than its share has fragments. Worlds are all played at once.
    """
    most = min(actors, instances_max)
    shares = sorted({math.ceil(actors / instances) for instances in range(1, most + 1)})
    counts = [math.ceil(actors / share) for share in shares]
    rows: list[Row] = []
    for number in (1, *counts[:-1]):
        share = min(ENVIRONMENTS_MAX, math.ceil(actors / number))
        doubled = [2**power for power in range((share - 1).bit_length())]
        rows.append((number, [share] if are_worlds else [*doubled, share]))
    return rows


def _speed(measured: Profile | None) -> float:
    return measured.samples_per_s if measured else 0.0


def _saturation(before: Profile, after: Profile) -> float:
    """Returns Sat: growth of throughput divided by growth of memory."""
    gain = after.samples_per_s / before.samples_per_s - 1.0
    growth = after.memory_bytes / before.memory_bytes - 1.0
    return gain / growth if growth > 0.0 else math.copysign(math.inf, gain or -1.0)
