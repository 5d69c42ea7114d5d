"""Experiments that read a key: the other settings that a run needs to use the key."""

from __future__ import annotations

from typing import Any

from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.scaler import SCALERS

MINIMAL: dict[str, Any] = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}
_NEEDS: dict[str, dict[str, Any]] = {"minions": {"scheduler": "hopper"}}
_PARTS: dict[str, dict[str, Any]] = {
    "detector": {"scaler.kind": "nitro"},
    "learner.function": {"learner.kind": "function", "learner.update_timeout_s": 900},
    "learner.stellaris": {"learner.kind": "stellaris", "algorithm.kind": "ppo"},
    "learner.gmi": {"learner.kind": "gmi", "algorithm.kind": "ppo", "scaler.kind": "fixed"},
    "learner.gmi.layout": {"algorithm.kind": "impact", "algorithm.rounds": "synchronous"},
    "environment.backend": {
        "environment.id": "Ant-v5",
        "learner.kind": "gmi",
        "algorithm.kind": "ppo",
        "scaler.kind": "fixed",
    },
    "fleet.ray": {"fleet.kind": "ray"},
    "algorithm.round_steps": {"algorithm.kind": "impact", "algorithm.rounds": "asynchronous"},
    "algorithm.staleness_max": {"algorithm.kind": "impact", "algorithm.rounds": "asynchronous"},
    **{f"algorithm.{kind}": {"algorithm.kind": kind} for kind in ALGORITHMS.settings},
    **{
        f"algorithm.{kind}.kl_target": {f"algorithm.{kind}.kl_coefficient": 0.5}
        for kind in ("ppo", "impact")
    },
}


def deciders(path: str) -> dict[str, Any]:
    """Returns the non-default settings, by dotted path, with which a run reads a key."""
    found = {
        key: value
        for part, keys in _PARTS.items()
        if f"{path}.".startswith(f"{part}.")
        for key, value in keys.items()
    }
    section, _, key = path.partition(".")
    # Use the fixed scaler, which does not read all shared settings, only for keys that no other scaler has.
    kinds = sorted(SCALERS.settings, key=lambda kind: kind == "fixed")
    owner = next((kind for kind in kinds if key in SCALERS.settings[kind].model_fields), None)
    if section == "scaler" and owner is not None:
        found |= {
            f"scaler.{name}": value
            for name, value in ({"kind": owner} | _NEEDS.get(owner, {})).items()
        }
        if owner == "minions":
            found["stop.target_return"] = 3000.0
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
