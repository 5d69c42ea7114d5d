"""What sections of the experiment file are made of: the base of all of them, and common types of fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

import pydantic
from pydantic import Field as Field

from runtime.errors import one_line

S = TypeVar("S", bound="Section")
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Json = pydantic.JsonValue
Actors = Annotated[int, Field(ge=1, le=10_000)]


class Section(pydantic.BaseModel):
    """A section of the experiment file: frozen, and strict about its keys and their types."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _with_whole_numbers(cls, values: Any) -> Any:
        """Takes 1e6 as the whole number that it is, where one is expected."""
        if not isinstance(values, dict):
            return values
        return {name: int(value) if isinstance(value, float) and value.is_integer() and name in cls.model_fields
                and int in _types(cls.model_fields[name].annotation) else value for name, value in values.items()}


@dataclass(frozen=True)
class Unused:
    """Keys that a run never reads, for one reason.

    Attributes:
        keys: Dotted.
        deciders: The keys by whose values the others are not read.
        allowed: What would have them read.
    """

    keys: Sequence[str]
    deciders: Sequence[str]
    allowed: str


def _types(annotation: Any) -> set[Any]:
    """Returns the types of which an annotation is made."""
    return {annotation}.union(*map(_types, get_args(annotation)))


def read_tree(section: type[S], tree: Any) -> S:
    """Returns the section that a tree describes, as files need it that are no experiments.

    Raises:
        ValueError: It is none; names the first wrong field, its value and what is wrong with it.
    """
    try:
        return section.model_validate(tree)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        name = one_line(".".join(map(str, problem["loc"]))) or "it"
        # What lacks a key would stand there for the key.
        value = "" if problem["type"] == "missing" else f" = {problem['input']!r:.80}"
        raise ValueError(f"{name}{value}: {problem['msg']}") from None
