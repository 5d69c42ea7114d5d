"""Adds the keys of all kinds to the sections that choose among them.

`runtime.registry` or an import path locates a kind's settings. Its keys then appear automatically in the reference, in
``python -m runtime explain`` and in messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic.fields import FieldInfo

from runtime.errors import ExperimentError
from runtime.settings.kinds import Kinds
from runtime.settings.section import Section

Fields = dict[str, FieldInfo]


def nested_fields(section: type[Section], kinds: Kinds[Any]) -> Fields:
    """Returns a section for each kind that has keys, by `Kinds.key`.

    Raises:
        ExperimentError: Two kinds would have the same name.
    """
    fields: Fields = {}
    for kind, settings in kinds.settings.items():
        key = kinds.key(kind)
        if key in fields or (
            key in section.model_fields and section_of(section.model_fields[key]) is None
        ):
            raise ExperimentError(
                f"{kinds.section}.kind = {kind!r}: {kinds.section}.{key} is something else already; "
                "allowed: another name of the class"
            )
        if settings.model_fields:
            known = section.model_fields.get(key)
            fields[key] = _field(
                settings,
                settings(),
                known.description if known else f"settings of {settings.title}",
            )
    return fields


def flat_fields(section: type[Section], kinds: Kinds[Any]) -> Fields:
    """Returns the keys of all kinds. Descriptions of keys that only some kinds have name these kinds.

    Raises:
        ExperimentError: Two kinds use one key with different meanings.
    """
    owners: dict[str, list[str]] = {}
    fields: Fields = dict(kinds.base.model_fields)
    for kind, settings in kinds.settings.items():
        for name, info in settings.model_fields.items():
            if name in fields and repr(fields[name]) != repr(info):
                raise ExperimentError(
                    f"{kinds.section}.{name} means one thing to "
                    f"{' and '.join(owners.get(name, ['all']))}, and another to {kind}: name it "
                    "otherwise"
                )
            fields[name] = info
            if name not in kinds.base.model_fields:
                owners.setdefault(name, []).append(kind)
    return fields | {
        name: FieldInfo.merge_field_infos(
            fields[name], description=f"{fields[name].description} ({', '.join(found)})"
        )
        for name, found in owners.items()
    }


def give_fields(
    section: type[Section],
    kinds: Kinds[Any],
    fields_of: Callable[[type[Section], Kinds[Any]], Fields],
) -> None:
    """Gives a section and its subclasses the keys and names of all kinds registered so far."""
    fields = fields_of(section, kinds)
    kind = section.model_fields["kind"]
    names = dict.fromkeys((kind.default, *kinds.settings))
    fields["kind"] = _field(Literal[*names], kind.default, kind.description)
    # Later subclasses take their fields from these.
    section.__annotations__.update({name: info.annotation for name, info in fields.items()})
    known = [section]
    for one in known:
        known += one.__subclasses__()
        one.__pydantic_fields__.update(fields)
        one.model_rebuild(force=True)


def refresh_defaults(container: type[Section]) -> None:
    """Updates a container and its subclasses to the current classes of its sections."""
    known = [container]
    for one in known:
        known += one.__subclasses__()
        for name, info in one.__pydantic_fields__.items():
            if isinstance(info.default, Section):
                one.__pydantic_fields__[name] = _field(
                    info.annotation, type(info.default)(), info.description
                )
        one.model_rebuild(force=True)


def section_of(info: FieldInfo) -> type[Section] | None:
    """Returns the section in a field; None if the field holds a value."""
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _field(annotation: Any, default: Any, description: str | None) -> FieldInfo:
    return FieldInfo.from_annotated_attribute(
        annotation, FieldInfo(default=default, description=description)
    )
