"""Settings of MinionsRL's scaler; importing them reads no scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Field

if TYPE_CHECKING:
    from runtime.scaler.minions import MinionsScaler


SHIPPED: Final = Path(__file__).parent / "schedulers"
SUFFIX: Final = ".safetensors"


def scheduler_path(name: str) -> Path:
    """Returns the file of a shipped scheduler by its name, or the path itself, which has a slash or the suffix."""
    is_path = "/" in name or name.endswith(SUFFIX)
    return Path(name) if is_path else SHIPPED / f"{name}{SUFFIX}"


class MinionsSettings(ScalerSettings):
    """Settings of MinionsRL's scaler, which needs ``stop.target_return``, and ``python -m papers.minionsrl``."""

    needs_target: ClassVar[bool] = True

    scheduler: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="a shipped scheduler, or the file of one that you trained, relative to the working "
        "directory",
    )

    @property
    def file_read(self) -> str | None:
        """Returns the key that names the scheduler's file; None for a shipped one, which deployments have."""
        is_shipped = scheduler_path(self.scheduler or "").parent == SHIPPED
        return None if is_shipped else "scheduler"

    def contradictions(self) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from super().contradictions()
        if self.scheduler is None:
            shipped = " | ".join(sorted(path.stem for path in SHIPPED.iterdir()))
            yield (
                f"scaler.kind = minions has no scheduler: scaler.scheduler = null; allowed: {shipped}, or the path of "
                "a file that `python -m papers.minionsrl train` has written"
            )

    def make(self) -> MinionsScaler:
        """Reads the scheduler, and makes the scaler.

        Raises:
            ExperimentError: It cannot be read, or its counts are out of bounds.
        """
        from runtime.scaler.minions import MinionsScaler
        from runtime.scaler.saved_scheduler import load_scheduler

        return MinionsScaler(self, load_scheduler(scheduler_path(self.scheduler or "")))
