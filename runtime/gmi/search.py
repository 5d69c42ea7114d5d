"""Finds by measuring how many instances a machine should have, and how many environments each plays at once.

Paper: GMI-DRL §5.2, Algorithm 2: one row for each number of instances, of which each point has twice as many
environments as the one before, until more memory brings hardly more throughput.

Departure: a round's samples are those of the experiment, since the batch is the algorithm's and not the machine's. A
layout only says how they are shared out. What the paper leaves open: every point that runs is scored, a row's first
and its last one, too; memory that does not grow costs nothing; `estimate` is not defined there.
Departure: a row ends after two saturated points in a row instead of one, as one can be noise, or the step from a
single environment to a vector. One instance is measured first: n of them are at most n times as fast, and rows that
cannot win are left out. In CartPole two environments in lock-step are 5 % slower than one, and eight are 54 % faster:
the paper's rule ends 35 % below the best layout. With two points nothing was lost on 6,000 synthetic curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

SATURATION = 0.1
"""α: a point is saturated if throughput has grown by less than this part of what memory has, both in proportion."""
SATURATED_POINTS = 2
"""Saturated points in a row that end a row."""
ENVIRONMENTS_MAX = 1024
"""The most environments that an instance is asked to play at once."""
CLOSE, CLOSEST = 0.8, 3
"""What is measured again: points that are at least so fast against the fastest, and the most of them."""
_HEADROOM = 1.1
"""By how much an instance among others may seem faster than alone, because measurements differ."""


@dataclass(frozen=True)
class Layout:
    """How a round is shared out on a machine.

    Attributes:
        instances: Processes that each hold environments, policy and trainer.
        environments: Played at once in each of them.
        reduction: How their gradients are summed.
    """

    instances: int
    environments: int
    reduction: str


@dataclass(frozen=True)
class Profile:
    """What was measured of a layout.

    Attributes:
        samples_per_s: Of one instance, while the others run, too: it plays and trains on the largest share of a
            round; without reductions.
        memory_bytes: Of one instance.
        reduction: The way to sum gradients that was the quickest.
        reduction_s: What that takes in a round, seconds.
        round_s: What a whole round took, seconds; None if none was run.
    """

    samples_per_s: float
    memory_bytes: int
    reduction: str = ""
    reduction_s: float = 0.0
    round_s: float | None = None


@dataclass(frozen=True)
class Point:
    """A layout that was measured.

    Attributes:
        instances: As of `Layout`.
        environments: As of `Layout`.
        profile: What was measured; None if it cannot run.
        samples_per_s: Of the whole machine, reductions included; 0 if it cannot run.
        saturation: What throughput has grown by against the point before, over what memory has grown by; None if
            there is no point before.
    """

    instances: int
    environments: int
    profile: Profile | None
    samples_per_s: float = 0.0
    saturation: float | None = None

    @property
    def is_saturated(self) -> bool:
        """Whether more environments were hardly worth their memory."""
        return self.saturation is not None and self.saturation < SATURATION


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        points: All that was measured, in this order.
        cut_short: Numbers of instances with which more environments were not measured, because memory would have
            brought hardly more throughput.
        left_out: Numbers of instances that were not measured, because they could not win after what was.
    """

    points: tuple[Point, ...]
    cut_short: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    @property
    def best(self) -> Point | None:
        """The point with the most samples a second, the first of equal ones; None if nothing runs."""
        return max((point for point in self.points if point.profile), key=_score, default=None)

    @property
    def layout(self) -> Layout | None:
        """The layout of the best point; None if nothing runs."""
        if (best := self.best) is None or best.profile is None:
            return None
        return Layout(best.instances, best.environments, best.profile.reduction)


Profiler = Callable[[int, int], Profile | None]
"""Measures a layout by instances and environments at once in each; None if it cannot run."""
Row = tuple[int, Sequence[int]]
"""A number of instances, and the numbers of environments that are tried with it, each larger than the one before."""


def search_layout(
    profile: Profiler, *, actors: int, fragment_steps: int, instances_max: int, instances: int | None = None,
    environments: int | None = None,
) -> Found:
    """Searches for the layout with the most samples a second.

    Args:
        profile: Measures one.
        actors: Fragments of a round.
        fragment_steps: Steps of each of them.
        instances_max: The most instances that make sense, such as the cores.
        instances: The only number of them that is asked for; None for all that make sense.
        environments: The same of environments.
    """
    return search(profile, layouts(actors, instances_max, instances, environments),
                  partial(estimate, actors=actors, fragment_steps=fragment_steps))


def estimate(instances: int, measured: Profile, *, actors: int, fragment_steps: int) -> float:
    """Returns samples a second of a whole machine: top · n / (1 + COM / (BW · T)), if all have the same share."""
    share_s = math.ceil(actors / max(1, instances)) * fragment_steps / measured.samples_per_s
    return actors * fragment_steps / (measured.round_s or share_s + measured.reduction_s)


def measure_again(
    profile: Profiler, points: Sequence[Point], estimate: Callable[[int, Profile], float]
) -> tuple[Point, ...]:
    """Measures the fastest points twice more, in turns; of each one's three measurements the middle one counts.

    Args:
        profile: Measures a point.
        points: As they were measured once, which may be noise.
        estimate: As of `search`.

    Returns:
        All points, in their order.
    """
    def speed(point: Point, measured: Profile | None) -> float:
        return estimate(point.instances, measured) if measured else 0.0

    ranked = sorted((point for point in points if point.profile), key=_score, reverse=True)
    close = [point for point in ranked[:CLOSEST] if point.samples_per_s >= CLOSE * ranked[0].samples_per_s]
    measured = {point: [point.profile] for point in close}
    for point in 2 * close if len(close) > 1 else []:
        measured[point].append(profile(point.instances, point.environments))
    middle = {point: sorted(found, key=partial(speed, point))[len(found) // 2] for point, found in measured.items()}
    return tuple(replace(point, profile=middle[point], samples_per_s=speed(point, middle[point]))
                 if point in middle else point for point in points)


def search(profile: Profiler, rows: Iterable[Row], estimate: Callable[[int, Profile], float]) -> Found:
    """Searches rows for the point with the most samples a second.

    Args:
        profile: Measures a point.
        rows: In the order in which they are measured.
        estimate: Returns samples a second of the whole machine from the instances and what was measured of one.
    """
    points: list[Point] = []
    cut_short: list[int] = []
    left_out: list[int] = []
    for instances, counts in rows:
        scores = {point.instances: point.samples_per_s for point in sorted(points, key=_score) if point.profile}
        if instances * scores.get(1, math.inf) * _HEADROOM < max(scores.values(), default=0.0):
            left_out.append(instances)
            continue
        before: Profile | None = None
        saturated = 0
        for environments in counts:
            measured = profile(instances, environments)
            if measured is None:
                points.append(Point(instances, environments, None))
                continue
            point = Point(instances, environments, measured, estimate(instances, measured),
                          _saturation(before, measured) if before else None)
            points.append(point)
            before = measured
            saturated = saturated + 1 if point.is_saturated else 0
            if saturated == SATURATED_POINTS and environments != counts[-1]:
                cut_short.append(instances)
                break
    return Found(tuple(points), tuple(cut_short), tuple(left_out))


def layouts(
    actors: int, instances_max: int, instances: int | None = None, environments: int | None = None
) -> list[Row]:
    """Returns what makes sense for a round of so many fragments: one instance first, then the most, and down to two.

    Of numbers of instances with which the largest share is the same, only the smallest is there. An instance never
    plays more environments at once than its share has fragments. What is given is the only number of its kind.
    """
    most = min(actors, instances_max)
    shares = sorted({math.ceil(actors / instances) for instances in range(1, most + 1)})
    counts = [math.ceil(actors / share) for share in shares]
    return [(number, [environments] if environments else _doubled(min(ENVIRONMENTS_MAX, math.ceil(actors / number))))
            for number in ([instances] if instances else [1, *counts[:-1]])]


def _score(point: Point) -> float:
    return point.samples_per_s


def _doubled(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on, and at last ``most``."""
    return [*(2**power for power in range((most - 1).bit_length())), most]


def _saturation(before: Profile, after: Profile) -> float:
    """Returns Sat: how much throughput has grown, over how much memory has."""
    gain = after.samples_per_s / before.samples_per_s - 1.0
    growth = after.memory_bytes / before.memory_bytes - 1.0
    return gain / growth if growth > 0.0 else math.copysign(math.inf, gain or -1.0)
