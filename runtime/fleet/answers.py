"""Reads answers of processes that run an environment's code, which may itself have written to the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.records.files import json_object

ANSWER_BYTES_MAX = 2**24
"""Longest answer of a trial or an evaluation."""
JUNK = "wrote to the connection that its process answers on; allowed: files and connections that it has opened itself"


def answer(message: bytes, *shapes: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Reads an answer.

    Args:
        message: JSON.
        shapes: Allowed answers: the types of their values by key.

    Raises:
        ValueError: The answer has another form.
    """
    found = json_object(message)
    for shape in shapes:
        if found.keys() == shape.keys() and all(
            type(value) in shape[key] for key, value in found.items()
        ):
            return found
    raise ValueError(f"the environment {JUNK}")
