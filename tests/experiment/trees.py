"""Experiments with a key: the other settings that it needs, and values that it may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema

from docs.make_experiment_schema import schema
from runtime.experiment.explaining import section_of, walk_fields
from runtime.experiment.schema import KINDS

MINIMAL: dict[str, Any] = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}
FIELDS = {key.path: key.info for key in walk_fields()}
LEAVES = [path for path, info in FIELDS.items() if section_of(info) is None]
SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
_PARTS: dict[str, dict[str, Any]] = {
    "learner.layout": {"algorithm.kind": "impact", "algorithm.rounds": "synchronous"},
    "environment.backend": {
        "environment.id": "Ant-v5",
        "learner.kind": "gmi",
        "algorithm.kind": "ppo",
        "scaler.kind": "fixed",
    },
    "learner.function_timeout_s": {"learner.update_timeout_s": 900},
}
_OF_KINDS: dict[str, dict[str, Any]] = {
    "minions": {"scaler.scheduler": "hopper", "stop.target_return": 3000.0},
    "stellaris": {"algorithm.kind": "ppo"},
    "gmi": {"algorithm.kind": "ppo", "scaler.kind": "fixed"},
}
CANDIDATES: list[Any] = [
    "another",
    "1e5",
    "1:30",
    "null",
    "auto",
    "1.0",
    "host:1",
    "",
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    61,
    777,
    100_000,
    10**9,
    2.5,
    0.5,
    -0.5,
    [],
    [[1, 9]],
    ["p3.2xlarge"],
    ["a:Wrapper"],
    [{"a:B": {"c": [1.5, None]}}],
    [32],
    {},
    {"a": 1},
    ["a", {"b": 1}],
]
"""Values of all types, some of which each key may have."""


def deciders(path: str) -> dict[str, Any]:
    """Returns the non-default settings, by dotted path, with which a key is allowed."""
    section, _, key = path.partition(".")
    found = {}
    if section in KINDS and key not in ("", "kind"):
        owners = KINDS[section].owners(key)
        if key not in KINDS[section].shared:
            found = {f"{section}.kind": owners[0]} | _OF_KINDS.get(owners[0], {})
    for part, keys in _PARTS.items():
        if f"{path}.".startswith(f"{part}."):
            found |= keys
    return found


def tree_of(values: dict[str, Any]) -> dict[str, Any]:
    """Returns an experiment with these values, by dotted path."""
    tree = {name: dict(section) for name, section in MINIMAL.items()}
    for path, value in values.items():
        section, _, key = path.partition(".")
        if key:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return tree


def tree_with(path: str, value: Any) -> dict[str, Any]:
    """Returns an experiment in which the key has the value."""
    return tree_of(deciders(path) | {path: value})


def is_valid(tree: Any) -> bool:
    """Returns whether an experiment suits the JSON schema."""
    return bool(VALIDATOR.is_valid(tree))


def values_of(path: str) -> Iterator[Any]:
    """Yields values that the schema allows for a key."""
    section, _, key = path.partition(".")
    node = SCHEMA["properties"][section]
    for one in node.get("oneOf", [node]):
        part = one["properties"].get(key, {}) if key else one
        for choice in (part, *part.get("anyOf", [])):
            yield from choice.get("enum", [])
    if key == "kind" and section in KINDS:
        yield from KINDS[section].built_in
    yield from (value for value in CANDIDATES if is_valid(tree_with(path, value)))
