"""Describes the experiment file in words: type, range, default and meaning of every key, and nearest known names."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from runtime.config.schema import KINDS, EnvironmentSection, Experiment
from runtime.config.unused import reason, value_at
from runtime.errors import without_credentials
from runtime.settings.kinds import OWN, Kinds
from runtime.settings.section import OR_NULL, Section, Unused

EXTENDS = "extends"
_WRAPPER = get_args(EnvironmentSection.model_fields["wrappers"].annotation)[0]
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
    known = kinds.built_in
    each = [
        f"{kind} {settings.about}"
        for kind in known
        if hasattr(settings := kinds.settings[kind], "about")
    ]
    yield Key(
        f"{kinds.section}.kind",
        FieldInfo.from_annotated_attribute(
            cast(type[Any], Literal[*known]),
            FieldInfo(
                default=kinds.default, description="; ".join([kinds.about, *each, f"or {OWN}"])
            ),
        ),
    )
    found: dict[tuple[str, str], tuple[FieldInfo, list[str]]] = {}
    for kind, settings in kinds.settings.items():
        for name, info in settings.model_fields.items():
            if name != "kind":
                found.setdefault((name, repr(info)), (info, []))[1].append(kind)
    for (name, _), (info, owners) in found.items():
        is_everywhere = len(owners) == len(kinds.settings)
        yield Key(f"{kinds.section}.{name}", info, () if is_everywhere else owners)


def section_of(info: FieldInfo) -> type[Section] | None:
    """Returns the section in a field; None if the field holds a value."""
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


_FREE = {
    f"environment.{key}": EnvironmentSection.model_fields[key] for key in ("kwargs", "wrappers")
} | {"callbacks": Experiment.model_fields["callbacks"]}
_JSON = "text (a date in quotes), finite numbers, true, false, null, and lists and mappings of them"
"""Values allowed in the fields of `_FREE`."""


def allowed_values(info: FieldInfo) -> str:
    """Returns the allowed values of a field in words: its choices, or its type and range."""
    section = section_of(info)
    if section is not None:
        return "a section of keys: " + ", ".join(section.model_fields)
    return _allowed(info.annotation, info.metadata)


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
    if path == EXTENDS:
        return "; it stands in an experiment file, at its top, and nowhere else"
    section, _, key = path.rpartition(".")
    chosen = (kinds or {}).get(section)
    owners = KINDS[section].owners(key) if section in KINDS else []
    if owners:
        return f" of {section}.kind = {chosen}; allowed with {section}.kind = {' | '.join(owners)}"
    known = {
        one.path: one.path.rpartition(".")[2]
        for one in walk_fields()
        if not one.kinds or (kinds or {}).get(one.path.partition(".")[0], one.kinds[0]) in one.kinds
    }
    sections = sorted({one.rpartition(".")[0] for one in known})
    if section not in sections and (
        similar := difflib.get_close_matches(section, sections, 1, 0.75)
    ):
        there = f"{similar[0]}.{key}"
        return f"; did you mean {there if there in known else similar[0]}?"
    namesakes = [one for one, last in known.items() if last == key]
    if namesakes and not section:
        return f"; did you mean {' or '.join(namesakes)}?"
    siblings = [one for one in known if one.rpartition(".")[0] == section] + (
        [] if section else [EXTENDS]
    )
    matches = difflib.get_close_matches(key, [one.rpartition(".")[2] for one in siblings], 1, 0.65)
    elsewhere = difflib.get_close_matches(key, known.values(), 1, 0.75)
    if matches and (not elsewhere or _likeness(key, matches[0]) >= _likeness(key, elsewhere[0])):
        return f"; did you mean {f'{section}.{matches[0]}'.lstrip('.')}?"
    if elsewhere:
        return f"; did you mean {next(one for one, last in known.items() if last == elsewhere[0])}?"
    return f"; known there: {', '.join(one.rpartition('.')[2] for one in siblings) or 'nothing'}"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def _of_old_form(location: Sequence[str], value: Any) -> str:
    """Returns what to write instead of a kind's section of its own, as older files have it; empty if it is none."""
    section, kind = location[0], location[-1]
    if len(location) != 2 or section not in KINDS or not isinstance(value, Mapping):
        return ""
    if kind not in KINDS[section].settings:
        return ""
    prefix = "function_" if kind == "function" else ""
    written = ", ".join(
        f"{section}.{prefix}{name} = {_shown(one)}"
        for name, one in value.items()
        if KINDS[section].owners(f"{prefix}{name}")
    )
    return f"{section}.{kind} is no section any more: a kind's keys stand beside {section}.kind; write {written}"


def explain_problem(problem: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> str:
    """Describes one of pydantic's problems in words: the field, its value and what is allowed.

    Args:
        problem: As pydantic describes it.
        kinds: See `nearest`.
    """
    # For "auto or a number", pydantic adds the number's type.
    location = [str(part) for part in problem["loc"] if part != "constrained-int"]
    name = ".".join(location) or "experiment"
    kind, value = problem["type"], problem["input"]
    if kind == "extra_forbidden":
        if old := _of_old_form(location, value):
            return old
        return f"{name} is not a known key{nearest(name, kinds)}"
    path, info = _field(location, kinds or {})
    if kind == "missing":
        if info and (section := section_of(info)):
            key, info = next(
                (key, one) for key, one in section.model_fields.items() if one.is_required()
            )
            name += f".{key}"
        return f"{name} is missing: {info.description if info else ''}"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    if path in _FREE and path != name:
        # pydantic names the rest of the location.
        allowed = (
            _JSON
            if kind in ("finite_number", "invalid-json-value")
            else "text as a name"
            if location[-1] == "[key]"
            else allowed_values(_FREE[path])
        )
        return f"{path} has {_shown(value)} in it, which is not allowed; allowed: {allowed}"
    allowed = allowed_values(info) if info else problem["msg"]
    meant = (
        difflib.get_close_matches(value, _choices(info.annotation), 1)
        if info and isinstance(value, str)
        else []
    )
    if path == "environment.id" and callable(value):
        allowed += (
            f", here 'module:{getattr(value, '__name__', '…')}' of a module that actors can import"
        )
    return f"{name} = {_shown(value)} is not allowed; allowed: {allowed}" + "".join(
        f"; did you mean {one}?" for one in meant
    )


def explain_unused(experiment: Experiment, found: Unused, keys: Sequence[str]) -> str:
    """Describes keys that are set but never read by the run.

    Args:
        experiment: Merged from the file and the command line.
        found: Why they are not read.
        keys: Which of its keys to name.
    """
    named = ", ".join(f"{key} = {_shown(value_at(experiment, key))}" for key in keys)
    are, them = ("are", "them") if len(keys) > 1 else ("is", "it")
    return f"{named} {are} never read with {reason(experiment, found)}; allowed: {found.allowed}, or leave {them} out"


def _shown(value: Any) -> str:
    try:
        text = "null" if value is None else without_credentials(repr(value))
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else text[:97] + "..."


def _field(location: Sequence[str], kinds: Mapping[str, str]) -> tuple[str, FieldInfo | None]:
    """Returns the field nearest to a location, which may end in a list's index or a union's member."""
    fields = {
        one.path: one.info
        for one in walk_fields()
        if not one.kinds or kinds.get(one.path.partition(".")[0]) in one.kinds
    }
    return next(
        (
            (path, fields[path])
            for end in range(len(location), 0, -1)
            if (path := ".".join(location[:end])) in fields
        ),
        ("", None),
    )


def is_told_better(problem: Mapping[str, Any]) -> bool:
    """Returns whether another of pydantic's problems says the same: pydantic tries every member of a union.

    This concerns import paths, as text or mapping, and values that are ``auto`` or a number.
    """
    location = problem["loc"]
    return (
        location[-1:] == ("str",) and location[:-2] in (("environment", "wrappers"), ("callbacks",))
    ) or any(str(part).startswith("literal[") for part in location[-1:])


def _choices(annotation: Any) -> list[str]:
    """Returns the values of a closed set, at any depth; empty if there is none."""
    arguments = get_args(annotation)
    return (
        [str(one) for one in arguments]
        if get_origin(annotation) is Literal
        else [choice for one in arguments for choice in _choices(one)]
    )


def _allowed(annotation: Any, metadata: Iterable[Any]) -> str:
    if get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        return _allowed(annotation, [*metadata, *extra])
    if OR_NULL in metadata:
        return f"{_allowed(annotation, [one for one in metadata if one is not OR_NULL])} or null"
    arguments = get_args(annotation)
    if get_origin(annotation) is types.UnionType or str(get_origin(annotation)) == "typing.Union":
        members = ["null" if a is types.NoneType else _allowed(a, metadata) for a in arguments]
        return " or ".join(reversed(members) if members[0].startswith("a list") else members)
    if get_origin(annotation) is Literal:
        return " | ".join(str(a) for a in arguments)
    if get_origin(annotation) is dict:
        return "a mapping of names to values"
    if get_origin(annotation) is tuple and arguments[0] == _WRAPPER:
        return "a list of import paths, each alone or with a mapping of keyword arguments"
    if get_origin(annotation) is tuple:
        if (
            get_origin(arguments[0]) is Annotated
            and get_origin(get_args(arguments[0])[0]) is not tuple
        ):
            return f"a list of at least one, each {_allowed(arguments[0], [])}"
        return "a list of at least one " + (
            "name" if arguments[0] is str else "pair, such as [1, 8]"
        )
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[
        annotation
    ]
    bounds: dict[str, float] = {}
    for item in metadata:
        for part in getattr(item, "metadata", None) or [item]:
            for bound in ("ge", "gt", "le", "lt"):
                if getattr(part, bound, None) is not None:
                    bounds[bound] = getattr(part, bound)
    low = (
        f"from {bounds['ge']:,}"
        if "ge" in bounds
        else f"above {bounds['gt']:,}"
        if "gt" in bounds
        else ""
    )
    high = (
        f"to {bounds['le']:,}"
        if "le" in bounds
        else f"below {bounds['lt']:,}"
        if "lt" in bounds
        else ""
    )
    return " ".join(part for part in (words, low, high) if part)
