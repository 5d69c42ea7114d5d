"""Rows as input for scalers."""

from __future__ import annotations

from typing import Any

from runtime.records.rows import COLUMNS, RoundRow


def row(**values: Any) -> RoundRow:
    """Returns a finished round; unset values are 0."""
    return RoundRow(**dict.fromkeys(COLUMNS, 0) | values)
