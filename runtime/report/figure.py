"""The only door to matplotlib: figures that become files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runtime.errors import MissingExtraError, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
COLOURS = ("#2f6fb0", "#d9822b", "#3a8f4d", "#8e4aa8", "#777777", "#b5403a", "#17808c", "#a08020")


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


def plain(text: str) -> str:
    """Escapes text from a user or a file: matplotlib would read $ as mathematics, and hide a leading _."""
    return ("\u200a" if text.startswith("_") else "") + text.replace("$", r"\$")
