"""Actor scalers: how many actors a round gets (paper: Nitro §5.3). One file per scaler, its settings beside it.

`runtime.config.variants` knows which there are; docs/design/add-a-scaler.md tells how to add one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.config.schema import ScalerSection
    from runtime.ports.scaling import Scaler


def make_scaler(section: ScalerSection) -> Scaler:
    """Makes the scaler that ``scaler.kind`` names."""
    return section.chosen.make()
