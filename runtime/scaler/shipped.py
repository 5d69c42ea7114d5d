"""Finds learned schedulers: shipped ones by name, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).parent / "schedulers"
SUFFIX: Final = ".safetensors"


def is_path(name: str) -> bool:
    """Returns whether a scheduler's name is the path of a file, instead of a shipped name."""
    return "/" in name or name.endswith(SUFFIX)


def shipped() -> list[str]:
    """Returns the names of the shipped schedulers."""
    return sorted(one.stem for one in SHIPPED.glob(f"*{SUFFIX}"))
