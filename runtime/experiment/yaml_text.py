"""YAML as users expect it: 5e-5 is a number; no, 1:30 and dates are text; and duplicate keys are errors."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from runtime.errors import ExperimentError


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                # The mapping's constructor refuses it.
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader`, or YAML 1.1, would read as something else."""


_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+|[0-9][0-9_]*\.[0-9_]*|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "merge": (r"<<", "<"),
}
"""Plain words that are not text, and their first characters. YAML 1.1 has more: no, on, 0777, 1:30, 2026-11-01."""
_Loader.yaml_implicit_resolvers = {}
for _tag, (_words, _firsts) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_words})$"), list(_firsts)
    )
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(f"^(?:{_SCALARS['float'][0]})$"),
    list(_SCALARS["float"][1]),
)


def parse(text: str, source: str) -> Any:
    """Parses a YAML document.

    Args:
        text: One document.
        source: Name for it in errors.

    Raises:
        ExperimentError: It is not YAML, or has a duplicate key. The message quotes no value, which might
            be a password.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ExperimentError(
            f"{source}{where}: cannot be read: {error.problem or error.context}"
        ) from None
    except Exception as error:
        # Constructors raise arbitrary errors on bad tags.
        raise ExperimentError(f"{source}: is not YAML: {type(error).__name__}") from None


def dump(tree: Any) -> str:
    """Returns a tree as YAML that `parse` reads back unchanged, with keys in order."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
