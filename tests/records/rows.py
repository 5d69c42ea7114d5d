"""Rows of rounds for tests."""

from __future__ import annotations

from typing import Any, get_type_hints

from runtime.records.rows import COLUMNS, RoundRow


def a_row(round_index: int, **values: Any) -> RoundRow:
    """Returns a row whose numbers are all 1, except its index and ``values``."""
    kinds = get_type_hints(RoundRow)
    ones = {key: 1 if kinds[key] in (int, int | None) else 1.0 for key in COLUMNS}
    return RoundRow(**ones | {"round_index": round_index} | values)
