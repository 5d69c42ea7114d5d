"""Finds keys that a run never reads: keys of unchosen kinds, and keys that other keys switch off.

`runtime.config.loading` refuses such a key in the layer that makes it useless or in a later one; for earlier layers,
commands print it. Each kind's settings say which keys it reads.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.fleet import FLEETS
from runtime.settings.kinds import Kinds
from runtime.settings.scaler import SCALERS
from runtime.settings.section import Unused
from runtime.settings.updater import UPDATERS

if TYPE_CHECKING:
    from runtime.config.schema import Experiment

_NESTED: Sequence[Kinds[Any]] = (ALGORITHMS, UPDATERS, FLEETS)
"""Sections whose kinds have sections of their own; scalers share one."""


def unused(experiment: Experiment) -> Iterator[Unused]:
    """Yields all keys that a run of the experiment never reads, set or not, without duplicates."""
    for kinds in _NESTED:
        for section, readers in _of_other_kinds(
            kinds, getattr(experiment, kinds.section).kind
        ).items():
            name = f"{kinds.section}.{section}"
            yield Unused(
                [f"{name}.{key}" for key in type(value_at(experiment, name)).model_fields],
                [f"{kinds.section}.kind"],
                f"{kinds.section}.kind = {' | '.join(readers)}",
            )
    yield from _of_other_scalers(experiment.scaler.kind)
    yield from experiment.scaler.chosen.unused()
    cache, algorithm, learner = experiment.cache, experiment.algorithm, experiment.learner.chosen
    if not experiment.scaler.chosen.signals:
        kinds_with = [kind for kind, settings in SCALERS.settings.items() if settings.signals]
        yield Unused(
            [f"detector.{key}" for key in type(experiment.detector).model_fields],
            ["scaler.kind"],
            f"scaler.kind = {' | '.join(kinds_with)}",
        )
    if not algorithm.is_asynchronous:
        kinds_of = [kind for kind, one in ALGORITHMS.settings.items() if one.is_off_policy]
        yield Unused(
            ["algorithm.round_steps", "algorithm.staleness_max"],
            ["algorithm.kind", "algorithm.rounds"],
            f"asynchronous rounds, which algorithm.kind = {' | '.join(kinds_of)} can have",
        )
    yield from algorithm.chosen.unused(f"algorithm.{algorithm.chosen_key}.")
    yield from learner.unused(f"learner.{UPDATERS.key(experiment.learner.kind)}.")
    unread = experiment.fleet.chosen.unread
    for key in unread:
        yield Unused([key], ["fleet.kind"], _reading(FLEETS, [key], "auto"))
    if learner.unread and not set(unread) & set(learner.unread):
        yield Unused(learner.unread, ["learner.kind"], _reading(UPDATERS, learner.unread))
    if cache.kind == "none":
        yield Unused(["cache.url"], ["cache.kind"], "cache.kind = redis")


def is_set(experiment: Experiment, key: str) -> bool:
    """Returns whether a key was set, even to its default."""
    section: Any = experiment
    for name in key.split("."):
        if name not in section.model_fields_set:
            return False
        section = getattr(section, name)
    return True


def value_at(experiment: Experiment, key: str) -> Any:
    """Returns the value of a dotted key."""
    value: Any = experiment
    for name in key.split("."):
        value = getattr(value, name)
    return value


def reason(experiment: Experiment, found: Unused) -> str:
    """Returns why keys are not used, such as ``scaler.kind = fixed``."""

    def shown(key: str) -> str:
        if key == "cache.url":
            return f"a {key}"  # which may hold a password
        value = json.dumps(value_at(experiment, key)).strip('"')
        return f"{key} = {value}" + ("" if is_set(experiment, key) else ", its default")

    return " and ".join(map(shown, found.deciders))


def _of_other_kinds(kinds: Kinds[Any], chosen: str) -> dict[str, list[str]]:
    """Returns the sections that the chosen kind does not read, each with the kinds that do."""
    readers: dict[str, list[str]] = {}
    for kind, settings in kinds.settings.items():
        if settings.model_fields:
            readers.setdefault(kinds.key(kind), []).append(kind)
        for section in getattr(settings, "sections", ()):
            readers.setdefault(section, []).append(kind)
    return {section: found for section, found in readers.items() if chosen not in found}


def _of_other_scalers(chosen: str) -> Iterator[Unused]:
    """Returns the keys of other scalers."""
    owners: dict[str, list[str]] = {}
    for kind, settings in SCALERS.settings.items():
        for key in settings.model_fields:
            if key not in SCALERS.settings[chosen].model_fields:
                owners.setdefault(key, []).append(kind)
    for kinds in dict.fromkeys(map(tuple, owners.values())):
        yield Unused(
            [f"scaler.{key}" for key, found in owners.items() if tuple(found) == kinds],
            ["scaler.kind"],
            f"scaler.kind = {' | '.join(kinds)}",
        )


def _reading(kinds: Kinds[Any], keys: Collection[str], *others: str) -> str:
    """Returns the kinds that read these keys."""
    found = [
        kind for kind, settings in kinds.settings.items() if not set(settings.unread) & set(keys)
    ]
    return f"{kinds.section}.kind = {' | '.join([*others, *found])}"
