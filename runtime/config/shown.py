"""An experiment as a tree to be shown: all that counts, or what its file gives."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from lambda_actor.cache import redacted
from runtime.config.explaining import walk_fields
from runtime.config.schema import Experiment, without_keys
from runtime.config.unused import is_set, unused
from runtime.config.variants import section_of

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
