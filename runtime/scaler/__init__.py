"""Actor scalers: how many actors a round gets (paper: Nitro §5.3). One file per scaler."""

from __future__ import annotations

from runtime.config.schema import ScalerSection
from runtime.interfaces import Scaler
from runtime.scaler.fixed import FixedScaler
from runtime.scaler.nitro import NitroScaler


def make_scaler(settings: ScalerSection) -> Scaler:
    """Makes the scaler that ``scaler.kind`` names."""
    if settings.kind == "fixed":
        return FixedScaler(settings.actors_fixed, actors_min=settings.actors_min)
    return NitroScaler(
        actors_min=settings.actors_min, actors_max=settings.actors_max,
        window_rounds=settings.window_rounds, decay_factor=settings.decay_factor)
