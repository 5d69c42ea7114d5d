"""Which keys a run never reads: those of a kind that was not chosen, and those that other keys switch off.

`runtime.config.loading` refuses such a key if it stands where it was to count, and the commands name it if it comes
from below. What a kind reads follows from the schema by itself: in a section that has a key ``kind``, a section inside
is read by the kind of its name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.config.section import Section
from runtime.config.updaters import FUNCTION_UPDATERS
from runtime.config.variants import ALGORITHMS, CURVATURE_SIGNALS, NOISE_SIGNALS, SCALERS

if TYPE_CHECKING:
    from runtime.config.schema import Experiment

_READERS = {"learner.function": FUNCTION_UPDATERS}
"""Kinds that read a section, if they are others than that of its name."""
_OF_INSTANCES = ("learner.market", "learner.image_parameter", "learner.volume_gib")


@dataclass(frozen=True)
class Unused:
    """Keys that a run never reads, for one reason.

    Attributes:
        keys: Dotted.
        deciders: The keys by whose values the others are not read.
        allowed: What would have them read.
    """

    keys: Sequence[str]
    deciders: Sequence[str]
    allowed: str


def unused(experiment: Experiment) -> Iterator[Unused]:
    """Yields all keys that a run of the experiment never reads, set or not; none of them twice."""
    yield from _of_other_kinds(experiment)
    yield from _of_other_scalers(experiment)
    scaler, fleet, cache, learner = experiment.scaler, experiment.fleet, experiment.cache, experiment.learner
    algorithm, settings = experiment.algorithm, experiment.algorithm.chosen
    signals = scaler.chosen.signals
    if not signals & (CURVATURE_SIGNALS | NOISE_SIGNALS):
        yield Unused(["detector.objective", "detector.subset_size"], ["scaler.kind"],
                     _scalers_with(CURVATURE_SIGNALS | NOISE_SIGNALS))
    if not signals & CURVATURE_SIGNALS:
        yield Unused(["detector.lanczos_steps"], ["scaler.kind"], _scalers_with(CURVATURE_SIGNALS))
    if not algorithm.is_asynchronous:
        kinds = [kind for kind, one in ALGORITHMS.settings.items() if one.is_off_policy]
        yield Unused(["algorithm.round_steps", "algorithm.staleness_max"], ["algorithm.kind", "algorithm.rounds"],
                     f"asynchronous rounds, which algorithm.kind = {' | '.join(kinds)} can have")
    else:
        yield Unused(["fleet.quorum"], ["algorithm.kind", "algorithm.rounds"], "algorithm.rounds = synchronous")
    of_kind = f"algorithm.{algorithm.kind}"
    if getattr(settings, "kl_coefficient", None) == 0:
        yield Unused([f"{of_kind}.kl_target"], [f"{of_kind}.kl_coefficient"], f"{of_kind}.kl_coefficient above 0")
    if settings.normalize_observations is False:
        yield Unused([f"{of_kind}.observation_clip"], [f"{of_kind}.normalize_observations"],
                     f"{of_kind}.normalize_observations = true | null")
    if learner.kind == "stellaris" and learner.stellaris.place != "virtual":
        yield Unused(["learner.stellaris.durations"], ["learner.stellaris.place"],
                     "learner.stellaris.place = virtual")
    if fleet.kind == "ray":
        yield Unused([*_OF_INSTANCES, "learner.launches_max"], ["fleet.kind"], "fleet.kind = auto | local | lambda")
    elif not learner.has_instance:
        yield Unused(["learner.instance_types", *_OF_INSTANCES], ["learner.kind"], "learner.kind = instance")
    if fleet.kind == "lambda":
        yield Unused(["fleet.processes"], ["fleet.kind"], "fleet.kind = auto | local | ray")
    if cache.kind == "none":
        yield Unused(["cache.url", "cache.memory_mib"], ["cache.kind"], "cache.kind = serverless | node | learner")
    elif cache.url is not None:
        yield Unused(["cache.memory_mib"], ["cache.url"], "cache.url = null")


def is_set(experiment: Experiment, key: str) -> bool:
    """Whether somebody has given a key a value, be it its default."""
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


def _of_other_kinds(experiment: Experiment) -> Iterator[Unused]:
    """The sections of kinds that were not chosen."""
    for name, section in experiment:
        kind = getattr(section, "kind", None)
        for inner_name, inner in section if isinstance(section, Section) and kind is not None else ():
            readers = _READERS.get(f"{name}.{inner_name}", (inner_name,))
            if isinstance(inner, Section) and kind not in readers:
                yield Unused([f"{name}.{inner_name}.{key}" for key in type(inner).model_fields], [f"{name}.kind"],
                             f"{name}.kind = {' | '.join(readers)}")


def _of_other_scalers(experiment: Experiment) -> Iterator[Unused]:
    """The keys of other scalers, which stand in the section itself, and those that this one does not need."""
    scaler = experiment.scaler
    chosen = SCALERS.settings[scaler.kind].model_fields
    owners: dict[str, list[str]] = {}
    for kind, settings in SCALERS.settings.items():
        for key in settings.model_fields:
            if key not in chosen:
                owners.setdefault(key, []).append(kind)
    for kinds in dict.fromkeys(map(tuple, owners.values())):
        yield Unused([f"scaler.{key}" for key, found in owners.items() if tuple(found) == kinds], ["scaler.kind"],
                     f"scaler.kind = {' | '.join(kinds)}")
    for key, (deciders, allowed) in scaler.chosen.unused().items():
        yield Unused([f"scaler.{key}"], [f"scaler.{one}" for one in ("kind", *deciders)], allowed)


def _scalers_with(signals: Collection[str]) -> str:
    kinds = [kind for kind, settings in SCALERS.settings.items() if settings.signals & set(signals)]
    return f"scaler.kind = {' | '.join(kinds)}"
