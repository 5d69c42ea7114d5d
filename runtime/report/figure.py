"""The only door to matplotlib: figures that become files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import MissingExtraError, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")


def new_figure(width_inches: float, height_inches: float, option: str) -> Figure:
    """Returns an empty figure with automatic layout.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(option, "matplotlib", "plot") from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def save_figure(figure: Figure, path: Path, option: str) -> None:
    """Writes a figure in the format of the file's suffix.

    Raises:
        RunError: It cannot be written.
    """
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise RunError(f"{option} {path}: cannot be written: {error}") from None
