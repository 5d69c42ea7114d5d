"""Curves to search: made-up families, each drawn from a seed.

The families have the shapes that GMI-DRL describes in words (§5.2; §6.2 with Figure 10: from 4,096 to 8,192
environments throughput "increases slightly" while memory "increases sharply"), and shapes of processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runtime.gmi.search import Found, Profile, layouts, search_layout

Curve = Mapping[tuple[int, int], Profile | None]
"""Measurements by number of instances, and of environments that each plays at once."""
FRAGMENT_STEPS = 256
MACHINES = ((8, 2), (16, 4), (64, 8), (60, 16), (256, 32))
"""Actors and cores."""


def searched(curve: Curve, *, actors: int, cores: int) -> Found:
    """Searches with a curve in place of measurements."""
    return search_layout(
        lambda *layout: curve[layout],
        actors=actors,
        fragment_steps=FRAGMENT_STEPS,
        instances_max=cores,
        saturation=0.1,
    )


def regret(found: Found, measured: Curve, truth: Curve, *, actors: int) -> float:
    """Returns how much slower the layout found is than the result of exhaustive search, as a share; negative if faster.

    Noise misleads both. Their choices depend on measured speeds, but count at their true speeds.
    """
    assert found.layout is not None
    best = max(measured, key=lambda layout: samples_per_s(measured, layout, actors))
    return 1.0 - (
        samples_per_s(truth, (found.layout.instances, found.layout.environments), actors)
        / samples_per_s(truth, best, actors)
    )


def samples_per_s(curve: Curve, layout: tuple[int, int], actors: int) -> float:
    """Returns the speed of rounds in which the slowest instance has the largest share; 0 if the layout cannot run."""
    profile, share = curve[layout], math.ceil(actors / layout[0]) * FRAGMENT_STEPS
    return (
        actors * FRAGMENT_STEPS / (share / profile.samples_per_s + profile.reduction_s)
        if profile
        else 0.0
    )


def made(actors: int, cores: int, seed: int, family: str) -> tuple[Curve, Curve]:
    """Returns a family's true curve and its measured curve, at all sensible layouts."""
    random = np.random.default_rng((seed, actors, cores))
    single, half = random.uniform(2_000, 40_000), random.uniform(0.5, 8.0)
    shape: dict[str, Any] = {
        "gain": lambda environments: (1.0 + half) * environments / (environments + half),
        "growth": 0.02,
        "noise": 0.0,
        "memory_max": math.inf,
        "crowding": 0.0,
        "reduction_s": 2e-3,
    } | FAMILIES[family](random)
    truth: dict[tuple[int, int], Profile | None] = {}
    noisy: dict[tuple[int, int], Profile | None] = {}
    for instances, counts in layouts(actors, cores):
        for environments in counts:
            top = single * shape["gain"](environments) / (1.0 + shape["crowding"] * (instances - 1))
            memory = 1.0 + shape["growth"] * environments
            for curve, noise in ((truth, 0.0), (noisy, shape["noise"] * random.standard_normal())):
                curve[instances, environments] = (
                    None
                    if instances * memory > shape["memory_max"] * cores
                    else Profile(
                        top * math.exp(noise),
                        round(300e6 * memory),
                        "mpr",
                        shape["reduction_s"] * math.log2(instances),
                    )
                )
    return truth, noisy


def _stepped(random: np.random.Generator) -> dict[str, Any]:
    cost, each = random.uniform(1.3, 2.0), random.uniform(0.2, 0.7)
    return {
        "gain": lambda environments: (
            1.0 if environments == 1 else environments / (cost + each * (environments - 1))
        ),
        "growth": 0.01,
        "noise": 0.02,
    }


FAMILIES: Mapping[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    # As in the paper: diminishing throughput for the same memory.
    "saturating": lambda random: {"growth": 0.3},
    # Many instances with many environments do not fit.
    "memory-bound": lambda random: {"growth": 0.2, "memory_max": 1.5},
    # Instances share memory bandwidth, and reductions take longer and longer. The best number is neither one nor all.
    "unimodal": lambda random: {"crowding": random.uniform(0.02, 0.3), "reduction_s": 0.02},
    # A shared processor: measurements vary by 3 %, and memory hardly grows.
    "noisy": lambda random: {"growth": 0.002, "noise": 0.03},
    # The environment takes all the time, so a vector of them gains nothing.
    "flat": lambda random: {"gain": lambda environments: 1.0, "growth": 0.002, "noise": 0.03},
    # A vector has a cost before it pays off: two environments at once are slower than one.
    "stepped": _stepped,
}
"""Parameters of a family's curves: ``gain`` of several environments in an instance over one, ``growth`` of memory with
each of them, and ``noise`` of measurements, all three relative; memory of a core (``memory_max``) relative to an
instance without environments; ``crowding``, the slowdown of an instance per other instance; and ``reduction_s`` of two
instances.
"""
