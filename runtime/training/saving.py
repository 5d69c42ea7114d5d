"""Puts finished rounds on disk while the next round's actors play."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from runtime.records.checkpoint import Checkpoint
from runtime.records.rows import RoundRow
from runtime.training.evaluations import BestPolicy

SaveRound = Callable[[RoundRow, Checkpoint, bytes, BestPolicy | None], None]
"""Takes a finished round's row, its checkpoint, the current policy as a WEIGHTS message, and the best so far."""


class Saving:
    """Holds a finished round until there is time to write it.

    A round is finished once it is written. Until then, a crash loses it and the work of the next round's actors. Their
    reservation is in the ledger before they start, and both rounds are repeated. So the next update must not begin
    before the round is written.

    Attributes:
        shield: Context around writes that an interrupt must not cut.
    """

    def __init__(
        self,
        save_round: SaveRound,
        shield: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Starts without a round.

        Args:
            save_round: Puts a round on disk.
            shield: See above.
        """
        self._save_round, self.shield = save_round, shield
        self._held: tuple[RoundRow, Checkpoint, bytes, BestPolicy | None] | None = None

    def hold(
        self, row: RoundRow, checkpoint: Checkpoint, policy: bytes, best: BestPolicy | None
    ) -> None:
        """Takes a finished round; the previous one must have been written."""
        self._held = (row, checkpoint, policy, best)

    def flush(self) -> None:
        """Writes the held round, if there is one. It is attempted only once.

        Raises:
            OSError: It cannot be written.
        """
        with self.shield():
            held, self._held = self._held, None
            if held is not None:
                self._save_round(*held)
