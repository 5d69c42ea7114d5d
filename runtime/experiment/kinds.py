"""The kinds of a part that an experiment may choose: built-in ones by name, others by import path."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

S = TypeVar("S")
BUILT_IN_KINDS: dict[str, Mapping[str, str]] = {}
"""By section, the ``module:class`` of the settings of each built-in kind; the first kind is the default. Filled in by
`runtime.registry`, which is above all parts."""
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
UNKNOWN_KIND = "unknown_kind"
OWN = "package.module:Settings (docs/design/add-a-part.md)"


def is_import_path(kind: object) -> bool:
    """Returns whether a kind is an import path, ``package.module:Settings``, instead of a name."""
    return isinstance(kind, str) and _IMPORT_PATH.fullmatch(kind) is not None


def load(path: str) -> Any:
    """Imports ``module:name``.

    Raises:
        ModuleNotFoundError: Python does not find the module; the message says where it looks.
        Exception: Anything that the module raises.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{error}; allowed: a module of the present folder, of one in PYTHONPATH, or of an "
            "installed package",
            name=error.name,
        ) from None


class Kinds(Generic[S]):
    """The kinds that a section's key ``kind`` may choose. Each kind's class has all keys of the section.

    Args:
        section: The section's name.
        base: Base class of the settings of all kinds.
        about: What the kinds are, for people.
        own: Keys of the base that belong to the kind: another kind does not inherit their values.
    """

    def __init__(self, section: str, base: type[S], about: str, own: Collection[str] = ()) -> None:
        self.section = section
        self.base = base
        self.about = about
        self._own = own

    @cached_property
    def settings(self) -> dict[str, type[S]]:
        """Returns the settings classes by kind: all built-in ones, and those added later."""
        return {kind: load(path) for kind, path in BUILT_IN_KINDS[self.section].items()}

    @property
    def built_in(self) -> list[str]:
        """Returns the kinds that have a name, the default one first."""
        return list(BUILT_IN_KINDS[self.section])

    @property
    def default(self) -> str:
        """Returns the kind of a file that names none."""
        return self.built_in[0]

    @property
    def shared(self) -> set[str]:
        """Returns the keys whose values stay if another kind is chosen."""
        base: Any = self.base
        return set(base.model_fields) - set(self._own)

    def choose(self, section: Any) -> Any:
        """Returns a section as the settings of the kind that it names; anything but a mapping as it is.

        Raises:
            PydanticCustomError: There is no such kind.
            pydantic.ValidationError: The settings do not fit.
        """
        if not isinstance(section, Mapping):
            return section
        kind = section.get("kind", self.default)
        if not isinstance(kind, str) or kind not in self.settings:
            # Imported here: actors load this module, and have no pydantic.
            from pydantic_core import PydanticCustomError

            raise PydanticCustomError(UNKNOWN_KIND, "no such kind")
        settings: Any = self.settings[kind]
        return settings.model_validate({**section, "kind": kind})

    def owners(self, key: str) -> list[str]:
        """Returns the kinds that have a key."""
        known: Mapping[str, Any] = self.settings
        return [kind for kind, settings in known.items() if key in settings.model_fields]
