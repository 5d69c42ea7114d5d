"""An experiment as a tree to be shown: all that counts, or what its file gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from typing import Any

from lambda_actor.cache import redacted
from runtime.config.explaining import section_of, walk_fields
from runtime.config.fleets import FLEETS
from runtime.config.schema import Experiment, ScalerSection, without_keys
from runtime.config.unused import is_set, unused
from runtime.config.updaters import FUNCTION_UPDATERS, UPDATERS
from runtime.config.variants import ALGORITHMS, SCALERS

Tree = dict[str, Any]


def whole_tree(experiment: Experiment) -> Tree:
    """Returns what makes the same experiment again, without what nothing reads; see `Experiment.to_yaml`."""
    return without_keys(_tree(experiment), _unused(experiment))


def given_tree(experiment: Experiment) -> Tree:
    """Returns what was given and differs from the defaults; see `Experiment.given_yaml`."""
    tree, unused_keys = _tree(experiment), _unused(experiment)
    return without_keys(tree, [
        path for path, default in _defaults().items()
        if path in unused_keys or not is_set(experiment, path) or _at(tree, path) == default])


def unread_paths(settings: Mapping[str, Any]) -> list[str]:
    """Returns the sections and keys that nothing reads, as other kinds are chosen than theirs.

    Args:
        settings: By dotted path; where a kind is not there, or not known, everything counts as read.
    """
    algorithm, scaler, learner, fleet = (
        settings.get(f"{section}.kind") for section in ("algorithm", "scaler", "learner", "fleet"))
    found: list[str] = []
    if algorithm in ALGORITHMS.settings:
        found += [f"algorithm.{kind}" for kind in ALGORITHMS.settings if kind != algorithm]
    if settings.get("algorithm.rounds") == "synchronous":
        found += ["algorithm.round_steps", "algorithm.staleness_max"]
    if scaler in SCALERS.settings:
        own = {"kind", *SCALERS.settings[scaler].model_fields}
        found += [f"scaler.{key}" for key in ScalerSection.model_fields if key not in own]
    if learner in UPDATERS:
        found += [] if learner in FUNCTION_UPDATERS else ["learner.function"]
        found += [] if learner == "stellaris" else ["learner.stellaris"]
    if fleet in FLEETS and fleet != "ray":
        found.append("fleet.ray")
    return found


def _unused(experiment: Experiment) -> set[str]:
    return {key for found in unused(experiment) for key in found.keys}


def _tree(experiment: Experiment) -> Tree:
    tree = experiment.model_dump(mode="json")
    if tree["cache"]["url"]:
        tree["cache"]["url"] = redacted(tree["cache"]["url"])
    return tree


def _defaults() -> Tree:
    """Each key's default as JSON has it, by dotted path; of a required one what equals no value."""
    return {path: info.default if info.is_required() else json.loads(json.dumps(info.default))
            for path, info in walk_fields() if section_of(info) is None}


def _at(tree: Tree, path: str) -> Any:
    return reduce(lambda inner, name: inner[name], path.split("."), tree)
