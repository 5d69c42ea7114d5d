"""MinionsRL's scaler: a learned scheduler decides how many actors a round gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from runtime.config.section import Field
from runtime.config.variants import ScalerSettings
from runtime.errors import ExperimentError
from runtime.ports.learning import State
from runtime.ports.scaling import RoundView, ScalingDecision
from runtime.scaler.random import DRAWS_SEED
from runtime.scaler.saved_scheduler import SavedScheduler, Seen, is_path, load_scheduler, shipped

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


class MinionsSettings(ScalerSettings):
    """Settings of MinionsRL's scaler; it needs ``stop.target_return``, and ``python -m runtime scheduler``."""

    about: ClassVar[str] = "asks a learned scheduler"
    needs_target: ClassVar[bool] = True

    scheduler: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="a shipped scheduler's name, or a file that `python -m runtime scheduler` has written, "
        "relative to where the program starts")
    scheduler_actions: Literal["sampled", "greedy"] = Field(
        "sampled", description="draw the count from the scheduler's distribution, as it was trained, or take the "
        "likeliest one")
    draws_seed: Annotated[int, Field(ge=0, lt=2**63)] = DRAWS_SEED

    @property
    def file_read(self) -> str | None:
        """The key that names the scheduler, if it is not a shipped one, which is part of a deployment's image."""
        return "scheduler" if is_path(self.scheduler or "") else None

    def contradictions(self) -> Iterator[str]:
        """Yields what is wrong with values that are each allowed."""
        yield from super().contradictions()
        if self.scheduler is None:
            yield ("scaler.kind = minions has no scheduler: scaler.scheduler = null; allowed: "
                   f"{' | '.join(shipped())}, or the path of a file that `python -m runtime scheduler train` has "
                   "written")

    def make(self) -> MinionsScaler:
        """Reads the scheduler, and makes the scaler.

        Raises:
            ExperimentError: It cannot be read, or its counts are out of bounds.
        """
        return MinionsScaler(self, load_scheduler(self.scheduler or ""))


class MinionsScaler:
    """Asks a learned scheduler in each round.

    ``I_k = clip(I_low + a_k, I_min, I_max)``, with ``a_k ~ π(· | s_k)`` or ``argmax π(· | s_k)``; s_k is
    `runtime.scaler.saved_scheduler.Seen.state`, which the scheduler's own mean and deviation normalise. What is drawn
    depends on ``draws_seed`` and k alone. No signal is read, so none is paid for.

    Paper: MinionsRL, "DRL-based Actor Scheduler". It does not say whether actions are drawn when the scheduler is no
    longer trained (docs/decisions/0017-scheduler.md).
    """

    signals: frozenset[str] = frozenset()

    def __init__(self, settings: MinionsSettings, saved: SavedScheduler) -> None:
        """Takes the bounds, and the scheduler.

        Raises:
            ExperimentError: No count of the scheduler is within the bounds.
        """
        self.actors_min, self.actors_max = settings.actors_min, settings.actors_max
        if saved.actors_max < self.actors_min or saved.actors_min > self.actors_max:
            raise ExperimentError(
                f"scaler.scheduler = {settings.scheduler!r} chooses from {saved.actors_min} to {saved.actors_max} "
                f"actors, of which none is between scaler.actors_min = {self.actors_min} and scaler.actors_max = "
                f"{self.actors_max}")
        self._policy, self._lowest, self._digest = saved.policy, saved.actors_min, saved.digest
        self._is_greedy, self._seed = settings.scheduler_actions == "greedy", settings.draws_seed
        self._seen = Seen()

    def first_wave(self, round_index: int) -> int:
        """Returns ``actors_min``, which every round has."""
        return self.actors_min

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides by what has been seen of the finished rounds."""
        state = self._seen.state(
            view.round_index, target_return=view.target_return or 0.0, budget_usd=view.budget_usd)
        if self._is_greedy:
            action = self._policy.best_action(state)
        else:
            draw = self._policy.noise(np.random.default_rng((self._seed, view.round_index)), 1)[0]
            action = self._policy.sample(self._policy.outputs(state), draw)
        return ScalingDecision(min(max(self._lowest + int(action), self.actors_min), self.actors_max))

    def observe(self, row: RoundRow) -> None:
        """Sees what the round has brought."""
        self._seen = self._seen.after(row)

    def get_state(self) -> State:
        """Returns what has been seen, and which scheduler it is."""
        return State({}, {"seen": vars(self._seen), "scheduler": self._digest})

    def set_state(self, state: State) -> None:
        """Goes on from ``state``.

        Raises:
            ValueError: It is another scheduler's.
        """
        if state.values["scheduler"] != self._digest:
            raise ValueError("scaler.scheduler is not the file any more with which the run began")
        self._seen = Seen(**state.values["seen"])
