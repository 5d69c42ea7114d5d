"""Experiments that read a key: the other settings that a run needs to use the key."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from runtime.experiment.explaining import walk_fields
from runtime.experiment.schema import KINDS

MINIMAL: dict[str, Any] = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}
_PARTS: dict[str, dict[str, Any]] = {
    "detector": {"scaler.kind": "nitro"},
    "learner.layout": {"algorithm.kind": "impact", "algorithm.rounds": "synchronous"},
    "environment.backend": {
        "environment.id": "Ant-v5",
        "learner.kind": "gmi",
        "algorithm.kind": "ppo",
        "scaler.kind": "fixed",
    },
    "algorithm.staleness_max": {"algorithm.kind": "impact", "algorithm.rounds": "asynchronous"},
    "algorithm.kl_target": {"algorithm.kl_coefficient": 0.5},
}
_OF_KINDS: dict[str, dict[str, Any]] = {
    "scaler.minions": {"scaler.scheduler": "hopper", "stop.target_return": 3000.0},
    "learner.function": {"learner.update_timeout_s": 900},
    "learner.stellaris": {"algorithm.kind": "ppo"},
    "learner.gmi": {"algorithm.kind": "ppo", "scaler.kind": "fixed"},
}


def owner_of(path: str) -> str | None:
    """Returns a kind that reads a key: the default one if it does; None if the section has no kinds."""
    section, _, key = path.partition(".")
    if section not in KINDS or key in ("", "kind"):
        return None
    if section != "scaler" and key in KINDS[section].shared:
        return None
    # Use the fixed scaler, which does not read all shared settings, only for keys that no other scaler has.
    owners = sorted(KINDS[section].owners(key), key=lambda kind: kind == "fixed")
    return owners[0] if owners else None


def _fields() -> dict[str, FieldInfo]:
    fields = {}
    for key in walk_fields():
        owner = owner_of(key.path)
        if not key.kinds or owner in key.kinds:
            fields[key.path] = key.info
    return fields


FIELDS = _fields()
"""Every key's type, default and meaning, as `owner_of` its path has it."""


def deciders(path: str) -> dict[str, Any]:
    """Returns the non-default settings, by dotted path, with which a run reads a key."""
    found = {
        key: value
        for part, keys in _PARTS.items()
        if f"{path}.".startswith(f"{part}.")
        for key, value in keys.items()
    }
    section, owner = path.partition(".")[0], owner_of(path)
    if owner is not None:
        found = {f"{section}.kind": owner} | _OF_KINDS.get(f"{section}.{owner}", {}) | found
    return found


def tree_with(values: dict[str, Any], base: dict[str, Any] = MINIMAL) -> dict[str, Any]:
    """Returns a copy of a tree with other values, by dotted path."""
    tree = {name: dict(section) for name, section in base.items()}
    for path, value in values.items():
        *sections, key = path.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = value
    return tree
