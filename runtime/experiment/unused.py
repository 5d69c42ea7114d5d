"""Finds keys that a run never reads, because other keys switch them off.

`runtime.experiment.loading` refuses such a key in the layer that makes it useless or in a later one; for earlier
layers, commands print it. Each kind's settings say which keys it reads.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.fleet import FLEETS
from runtime.experiment.kinds import Kinds
from runtime.experiment.learner import UPDATERS
from runtime.experiment.scaler import SCALERS
from runtime.experiment.section import Unused

if TYPE_CHECKING:
    from runtime.experiment.schema import Experiment


def unused(experiment: Experiment) -> Iterator[Unused]:
    """Yields all keys that a run of the experiment never reads, set or not, without duplicates."""
    scaler = experiment.scaler
    algorithm = experiment.algorithm
    learner = experiment.learner
    fleet = experiment.fleet
    yield from scaler.unused()
    yield from algorithm.unused()
    if not scaler.signals:
        kinds_with = [kind for kind, settings in SCALERS.settings.items() if settings.signals]
        yield Unused(
            [f"detector.{key}" for key in type(experiment.detector).model_fields],
            ["scaler.kind"],
            f"scaler.kind = {' | '.join(kinds_with)}",
        )
    if not algorithm.is_asynchronous:
        kinds_of = [kind for kind, one in ALGORITHMS.settings.items() if one.is_off_policy]
        yield Unused(
            ["algorithm.staleness_max"],
            ["algorithm.kind", "algorithm.rounds"],
            f"asynchronous rounds, which algorithm.kind = {' | '.join(kinds_of)} can have",
        )
    for key in fleet.unread:
        yield Unused([key], ["fleet.kind"], _reading(FLEETS, [key]))
    if left := [key for key in learner.unread if key not in (*fleet.unread, *fleet.read)]:
        yield Unused(left, ["learner.kind"], _reading(UPDATERS, left))
    if experiment.cache.kind == "none":
        yield Unused(["cache.url"], ["cache.kind"], "cache.kind = redis")


def is_set(experiment: Experiment, key: str) -> bool:
    """Returns whether a key of a section was set, even to its default."""
    section, _, name = key.partition(".")
    return name in getattr(experiment, section).model_fields_set


def value_at(experiment: Experiment, key: str) -> Any:
    """Returns the value of a section's key."""
    section, _, name = key.partition(".")
    return getattr(getattr(experiment, section), name)


def reason(experiment: Experiment, found: Unused) -> str:
    """Returns why keys are not used, such as ``scaler.kind = fixed``."""

    def shown(key: str) -> str:
        value = json.dumps(value_at(experiment, key)).strip('"')
        return f"{key} = {value}" + ("" if is_set(experiment, key) else ", its default")

    return " and ".join(map(shown, found.deciders))


def _reading(kinds: Kinds[Any], keys: Collection[str]) -> str:
    """Returns the kinds that read these keys."""
    found = [
        kind for kind, settings in kinds.settings.items() if not set(settings.unread) & set(keys)
    ]
    return f"{kinds.section}.kind = {' | '.join(found)}"
