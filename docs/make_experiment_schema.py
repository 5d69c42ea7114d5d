"""Writes docs/reference/experiment.schema.json, by which editors complete and check experiment files."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.experiment.explaining import EXTENDS_DESCRIPTION  # noqa: E402
from runtime.experiment.kinds import OWN, Kinds  # noqa: E402
from runtime.experiment.schema import KINDS, Experiment  # noqa: E402
from runtime.experiment.section import OR_NULL, Section  # noqa: E402

PATH = ROOT / "docs" / "reference" / "experiment.schema.json"


def schema() -> dict[str, Any]:
    """Returns the JSON schema of an experiment file. No key is required, because ``extends`` may supply it."""
    properties = _properties(Experiment)
    for name, kinds in KINDS.items():
        properties[name] = {"description": kinds.about, "oneOf": list(_kinds(kinds))}
    properties["extends"] = {"type": "string", "description": EXTENDS_DESCRIPTION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Experiment",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _kinds(kinds: Kinds[Any]) -> list[dict[str, Any]]:
    """Returns the schema of each kind's section, and of all those by import path."""
    found = []
    for kind in kinds.built_in:
        keys = _properties(kinds.settings[kind]) | {"kind": {"const": kind}}
        required = [] if kind == kinds.default else ["kind"]
        found.append(_section(keys) | {"title": kind, "required": required})
    own = {
        "kind": {
            "type": "string",
            "pattern": r"^[^\W\d][\w.]*:[^\W\d]\w*$",
            "description": OWN,
        }
    }
    return [*found, {"title": OWN, "type": "object", "properties": own, "required": ["kind"]}]


def _section(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _properties(section: type[Section]) -> dict[str, Any]:
    """Returns the schema of each key, with sections in place and nothing required."""
    written = section.model_json_schema()
    parts = written.get("$defs", {})
    found = {}
    for name, info in section.model_fields.items():
        one = _in_place(written["properties"][name], parts)
        found[name] = {"anyOf": [one, {"type": "null"}]} if OR_NULL in info.metadata else one
    return found


def _in_place(one: Any, parts: Mapping[str, Any]) -> Any:
    """Replaces references to other sections by these, except to JSON values of any kind."""
    if isinstance(one, list):
        return [_in_place(item, parts) for item in one]
    if not isinstance(one, Mapping):
        return one
    if name := str(one.get("$ref", "")).rpartition("/")[2]:
        beside = {key: value for key, value in one.items() if key != "$ref"}
        return {} if name == "JsonValue" else _in_place(parts[name], parts) | beside
    return {
        key: _in_place(value, parts)
        for key, value in one.items()
        if key not in ("required", "title")
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")
