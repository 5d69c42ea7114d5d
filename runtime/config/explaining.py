"""Describes the experiment file in words: type, range, default and meaning of every key, and nearest known names."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from runtime.config.schema import EnvironmentSection, Experiment
from runtime.config.unused import reason, value_at
from runtime.config.variants import section_of
from runtime.errors import without_credentials
from runtime.settings.section import Section, Unused

EXTENDS = "extends"
_WRAPPER = get_args(EnvironmentSection.model_fields["wrappers"].annotation)[0]
EXTENDS_DESCRIPTION = (
    "another experiment file, relative to this one, whose keys count if this one does not have them"
)


def walk_fields(
    section: type[Section] = Experiment, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Yields every field with its dotted path, and each section before its fields."""
    for name, info in section.model_fields.items():
        yield prefix + name, info
        if (inner := section_of(info)) is not None:
            yield from walk_fields(inner, f"{prefix}{name}.")


_FREE = {
    f"environment.{key}": EnvironmentSection.model_fields[key] for key in ("kwargs", "wrappers")
} | {"callbacks": Experiment.model_fields["callbacks"]}
_JSON = "text (a date in quotes), finite numbers, true, false, null, and lists and mappings of them"
"""Values allowed in the fields of `_FREE`."""

DEFAULT_KINDS = {
    path.removesuffix(".kind"): str(info.default)
    for path, info in walk_fields()
    if path.endswith(".kind")
}
"""Default kind of each section."""


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
        kinds: By section, the chosen kind's own section. Keys of other kinds are only proposed if nothing else fits.
            None if nothing is chosen.
    """
    if path == EXTENDS:
        return "; it stands in an experiment file, at its top, and nowhere else"
    section, _, key = path.rpartition(".")
    known = {one: one.rpartition(".")[2] for one, _ in walk_fields()}
    sections = sorted({one.rpartition(".")[0] for one in known})
    if section not in sections and (
        similar := difflib.get_close_matches(section, sections, 1, 0.75)
    ):
        there = f"{similar[0]}.{key}"
        return f"; did you mean {there if there in known else similar[0]}?"
    namesakes = _of_chosen((one for one, last in known.items() if last == key), kinds)
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
        return f"; did you mean {_of_chosen((one for one, last in known.items() if last == elsewhere[0]), kinds)[0]}?"
    return f"; known there: {', '.join(one.rpartition('.')[2] for one in siblings) or 'nothing'}"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def _of_chosen(paths: Iterable[str], kinds: Mapping[str, str] | None) -> list[str]:
    """Returns the paths that are not in the section of an unchosen kind, or all paths if there are none."""
    found = list(paths)

    def is_chosen(path: str) -> bool:
        section, _, rest = path.partition(".")
        return kinds is None or "." not in rest or rest.partition(".")[0] == kinds.get(section)

    return [path for path in found if is_chosen(path)] or found


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
        return f"{name} is not a known key{nearest(name, kinds)}"
    path, info = _field(location)
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


def _field(location: Sequence[str]) -> tuple[str, FieldInfo | None]:
    """Returns the field nearest to a location, which may end in a list's index or a union's member."""
    fields = dict(walk_fields())
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
