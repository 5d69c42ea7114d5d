"""Describes the experiment file in words: type, range, default and meaning of every key, and nearest known names."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from lambda_actor.errors import meant_path
from runtime.errors import without_credentials
from runtime.experiment.kinds import OWN, UNKNOWN_KIND, Kinds
from runtime.experiment.schema import KINDS, Experiment, is_below
from runtime.experiment.section import OR_NULL, Section

EXTENDS = "extends"
EXTENDS_DESCRIPTION = (
    "another experiment file, relative to this one, whose keys count if this one does not have them"
)


@dataclass(frozen=True)
class Key:
    """A key of the experiment file.

    Attributes:
        path: Dotted.
        info: Its type, default and meaning.
        kinds: The kinds of its section that have it with this meaning; empty if all have.
    """

    path: str
    info: FieldInfo
    kinds: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Returns the path, and the kinds in parentheses."""
        return f"{self.path} ({', '.join(self.kinds)})" if self.kinds else self.path


def walk_fields(section: type[Section] = Experiment, prefix: str = "") -> Iterator[Key]:
    """Yields every key, and each section before its keys; a key that differs among kinds once for each meaning."""
    for name, info in section.model_fields.items():
        yield Key(prefix + name, info)
        if prefix + name in KINDS:
            yield from _keys_of_kinds(KINDS[name])
        elif (inner := section_of(info)) is not None:
            yield from walk_fields(inner, f"{prefix}{name}.")


def _keys_of_kinds(kinds: Kinds[Any]) -> Iterator[Key]:
    names: Any = Literal[*kinds.built_in]
    described = FieldInfo(default=kinds.default, description=f"{kinds.about}; or {OWN}")
    yield Key(f"{kinds.section}.kind", FieldInfo.from_annotated_attribute(names, described))
    meanings: dict[tuple[str, str], tuple[FieldInfo, list[str]]] = {}
    for kind, settings in kinds.settings.items():
        for name, info in settings.model_fields.items():
            if name != "kind":
                meanings.setdefault((name, repr(info)), (info, []))[1].append(kind)
    for (name, _), (info, owners) in meanings.items():
        is_everywhere = len(owners) == len(kinds.settings)
        yield Key(f"{kinds.section}.{name}", info, () if is_everywhere else owners)


def section_of(info: FieldInfo) -> type[Section] | None:
    """Returns the section in a field; None if the field holds a value."""
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "a mapping of text to JSON values",
    "null": "null",
}
_BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "exclusiveMaximum": "below",
}


def allowed_values(info: FieldInfo) -> str:
    """Returns the allowed values of a field in words: its choices, or its type and range."""
    if (section := section_of(info)) is not None:
        return "a section of keys: " + ", ".join(section.model_fields)
    annotated = Annotated.__class_getitem__((info.annotation, "", *info.metadata))  # type: ignore[attr-defined]  # untyped
    adapter: TypeAdapter[Any] = TypeAdapter(annotated)
    or_null = " or null" if OR_NULL in info.metadata else ""
    return _allowed(adapter.json_schema()) + or_null


def _allowed(schema: Mapping[str, Any]) -> str:
    if choices := schema.get("anyOf"):
        return " or ".join(map(_allowed, choices))
    if choices := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return " | ".join(map(str, choices))
    if pair := schema.get("prefixItems"):
        return f"[{', '.join(map(_allowed, pair))}]"
    if items := schema.get("items"):
        return f"a {'non-empty ' * ('minItems' in schema)}list of {_allowed(items)}"
    bounds = [f"{word} {schema[key]:,}" for key, word in _BOUNDS.items() if key in schema]
    word = "non-empty " * ("minLength" in schema) + _WORDS.get(
        schema.get("type", ""), "a JSON value"
    )
    return " ".join([word, *bounds])


def default_text(info: FieldInfo) -> str:
    """Returns a field's default as written in a file."""
    if info.is_required():
        return "required"
    default = info.default
    return json.dumps(list(default) if isinstance(default, tuple) else default).strip('"')


def nearest(path: str, kinds: Mapping[str, str] | None = None) -> str:
    """Returns a hint from an unknown key to a known one, to append to a message.

    Args:
        path: Dotted; unknown.
        kinds: The chosen kind by section; None if nothing is chosen.
    """
    section, _, key = path.rpartition(".")
    chosen = (kinds or {}).get(section)
    owners = KINDS[section].owners(key) if section in KINDS else []
    if owners:
        return f" of {section}.kind = {chosen}; allowed with {section}.kind = {' | '.join(owners)}"
    known = [EXTENDS, *_known(kinds or {})]
    there = {
        dotted.rpartition(".")[2]: dotted
        for dotted in known
        if dotted.rpartition(".")[0] == section
    }
    anywhere = {dotted.rpartition(".")[2]: dotted for dotted in known}
    for names, likeness in ((there, 0.75), (anywhere, 1.0 if section else 0.75)):
        if near := difflib.get_close_matches(key, names, 1, likeness):
            return f"; did you mean {names[near[0]]}?"
    return f"; known there: {', '.join(there.values() or Experiment.model_fields)}"


def required_keys() -> dict[str, str]:
    """Returns the descriptions of the keys that have no default, by path."""
    return {
        key.path: key.info.description or ""
        for key in walk_fields()
        if key.info.is_required() and section_of(key.info) is None
    }


def explain_problem(problem: Mapping[str, Any], kinds: Mapping[str, str], tree: Any) -> str:
    """Describes one of pydantic's problems in words: the field, its value and what is allowed.

    Problems of one field give equal texts, because pydantic tries every member of a union and every item of a list.

    Args:
        problem: As pydantic describes it.
        kinds: See `nearest`.
        tree: The experiment.
    """
    location = [str(part) for part in problem["loc"]]
    kind = problem["type"]
    name = ".".join(location) or "experiment"
    if name == EXTENDS:
        return f"{EXTENDS} is allowed in a file only"
    if kind in ("extra_forbidden", "invalid_key"):
        return f"{name} is not a known key{nearest(name, kinds)}"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    if kind == UNKNOWN_KIND:
        location.append("kind")
    path, info = _field(location, kinds)
    if kind == "missing":
        needed = {path: text for path, text in required_keys().items() if is_below(path, [name])}
        missing, text = next(iter(needed.items()), (name, info.description))
        return f"{missing} is missing: {text}"
    if section_of(info) is not None and name != path:
        return f"{name} = {_shown(problem['input'])} is not allowed: {problem['msg']}"
    for key in path.split("."):
        tree = tree[key]
    allowed = allowed_values(info)
    choices = re.split(r" \| | or ", allowed)
    meant = difflib.get_close_matches(str(tree).lower(), choices, 1)
    hint = "".join(f"; did you mean {choice}?" for choice in meant)
    if kind == UNKNOWN_KIND:
        allowed = f"{allowed}, or {OWN}"
        hint = meant_path(str(tree)) or hint
    return f"{path} = {_shown(tree)} is not allowed; allowed: {allowed}{hint}"


def _shown(value: Any) -> str:
    text = "null" if value is None else without_credentials(repr(value))
    return text if len(text) <= 100 else text[:97] + "..."


def _known(kinds: Mapping[str, str]) -> dict[str, FieldInfo]:
    """Returns the fields by path, without those of other kinds than the chosen ones."""
    return {
        key.path: key.info
        for key in walk_fields()
        if not key.kinds or kinds.get(key.path.partition(".")[0], key.kinds[0]) in key.kinds
    }


def _field(location: Sequence[str], kinds: Mapping[str, str]) -> tuple[str, FieldInfo]:
    """Returns the field nearest to a location, which may end in a list's index or a union's member."""
    fields = _known(kinds)
    paths = (".".join(location[:end]) for end in range(len(location), 0, -1))
    path = next(path for path in paths if path in fields)
    return path, fields[path]
