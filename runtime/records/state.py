"""State of a run's parts in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class State:
    """State of a part in a checkpoint: arrays by name, and JSON values."""

    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


class HasState(Protocol):
    """A part of a run that can continue from a checkpoint."""

    def get_state(self) -> State:
        """Returns the state for resuming. Later changes do not affect it."""

    def set_state(self, state: State) -> None:
        """Continues from a state.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """
