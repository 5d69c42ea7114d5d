"""Where learned schedulers are: those that are shipped, by name, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).parent / "schedulers"
SUFFIX: Final = ".safetensors"


def is_path(name: str) -> bool:
    """Whether a scheduler's name is the path of a file, and not that of a shipped one."""
    return "/" in name or name.endswith(SUFFIX)


def shipped() -> list[str]:
    """Returns the names of the shipped schedulers."""
    return sorted(one.stem for one in SHIPPED.glob(f"*{SUFFIX}"))
