"""The kinds of a part that an experiment may choose: built-in ones by name, others by import path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Generic, TypeVar

S = TypeVar("S")
PLACES: dict[str, Mapping[str, str]] = {}
"""By section, the ``module:class`` of the settings of each built-in kind; the first kind is the default. Filled in by
`runtime.registry`, which is above all parts."""
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_import_path(kind: object) -> bool:
    """Returns whether a kind is an import path, ``package.module:Settings``, instead of a name."""
    return isinstance(kind, str) and _IMPORT_PATH.fullmatch(kind) is not None


def load(path: str) -> Any:
    """Imports ``module:name`` or ``module.name``.

    Raises:
        ModuleNotFoundError: Python does not find the module; the message says where it looks.
        Exception: Anything that the module raises.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
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
    """The kinds that a section's key ``kind`` may choose.

    Args:
        section: The section's name.
        base: Base class of the settings of all kinds.
    """

    def __init__(self, section: str, base: type[S]) -> None:
        self.section, self.base = section, base

    @cached_property
    def settings(self) -> dict[str, type[S]]:
        """Returns the settings classes by kind: all built-in ones, and those added later."""
        return {kind: load(place) for kind, place in PLACES[self.section].items()}

    def key(self, kind: str) -> str:
        """Returns the key of this kind's own section of settings, if it has one.

        This is the kind's name, or is derived from an import path's class: ``a2c`` for ``my_package.a2c:A2cSettings``.
        """
        if not is_import_path(kind):
            return kind
        name = kind.rpartition(":")[2].removesuffix("Settings")
        return _BEFORE_CAPITAL.sub("_", name).lower()
