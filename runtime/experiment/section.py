"""Base of all sections of the experiment file, and common field types."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

import pydantic
from pydantic import Field as Field

from runtime.errors import one_line

S = TypeVar("S", bound="Section")
T = TypeVar("T")
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Json = pydantic.JsonValue
Actors = Annotated[int, Field(ge=1, le=16_384)]
OR_NULL = pydantic.WrapValidator(lambda value, read: None if value is None else read(value))
Open = Annotated[T, OR_NULL]
"""A value that the file may leave open as null. Resolving fills it in, so that all later code has a value."""
OPEN: Any = None
"""Default of such a value."""


class Section(pydantic.BaseModel):
    """A section of the experiment file: frozen, and strict about its keys and their types."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_whole_numbers(cls, values: Any) -> Any:
        """Reads floats such as 1e6 as whole numbers if the field expects one."""
        if not isinstance(values, dict):
            return values
        return {
            name: int(value)
            if isinstance(value, float)
            and value.is_integer()
            and name in cls.model_fields
            and int in _types(cls.model_fields[name].annotation)
            else value
            for name, value in values.items()
        }


def _types(annotation: Any) -> set[Any]:
    """Returns all types in an annotation."""
    return {annotation}.union(*map(_types, get_args(annotation)))


def read_tree(section: type[S], tree: Any) -> S:
    """Returns the section that a tree describes, for files that are not experiments.

    Raises:
        ValueError: The tree does not fit; names the first wrong field, its value and the problem.
    """
    try:
        return section.model_validate(tree)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        name = one_line(".".join(map(str, problem["loc"]))) or "it"
        # A missing key has its whole parent as its input.
        value = "" if problem["type"] == "missing" else f" = {problem['input']!r:.80}"
        raise ValueError(f"{name}{value}: {problem['msg']}") from None
