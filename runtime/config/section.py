"""What sections of the experiment file are made of: the base of all of them, and common types of fields."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field as Field

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Actors = Annotated[int, Field(ge=1, le=10_000)]


class Section(pydantic.BaseModel):
    """A section of the experiment file: frozen, and strict about its keys and their types."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
