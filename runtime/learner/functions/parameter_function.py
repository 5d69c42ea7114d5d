"""The parameter function: decides which gradients wait, when they are applied, and how far each moves the policy.

    s_i     = V_now − V_pulled,i                        staleness; V counts aggregations
    S_max   = int(mean s of the first update whose mean is above 0) + 1; no bound before that
    bound_k = clip(int(S_max · d^(k−1)) + 1, 1, S_max)  in the k-th update
    on each arrival: aggregate all waiting gradients if mean(s) ≤ bound_k, or if they are as numerous as the learners
    each one, in order of arrival: one step at α · max(s_i, 1)^(−1/v); then V += 1

Source: the slides of Stellaris (SC 2024) and its authors' artifact; see docs/decisions/stellaris.md for what both
leave open. The rates for v = 1 are from Zhang et al. 2016. Each gradient takes a step of its own, because Adam would
cancel a common factor on an averaged step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """A gradient to apply now.

    Attributes:
        staleness: Aggregations since the version at which it was computed.
        factor: Factor on the learning rate.
    """

    gradient: Any
    staleness: int
    factor: float


class ParameterFunction:
    """Takes gradients as they arrive and returns those to apply.

    Attributes:
        version: V, the number of aggregations.
        updates: Number of finished updates, k − 1.
        staleness_max: S_max; None until an update's mean staleness is above 0.
    """

    def __init__(
        self, *, learners: int, staleness_decay: float | None, learning_rate_root: float | None
    ) -> None:
        """Starts before the first gradient.

        Args:
            learners: Number of learners that compute gradients in parallel.
            staleness_decay: d, above 0 to 1; None = no bound: each gradient is applied when it arrives.
            learning_rate_root: v, above 0; None = staleness does not change the rate.
        """
        self._learners = learners
        self._decay = staleness_decay
        self._root = learning_rate_root
        self.version = self.updates = 0
        self.staleness_max: int | None = None
        self._pending: list[tuple[Any, int]] = []
        self._applied: list[int] = []

    @property
    def bound(self) -> float:
        """The current update's bound; infinite if there is none."""
        if self._decay is None or self.staleness_max is None:
            return math.inf
        return max(
            1, min(int(self.staleness_max * self._decay**self.updates) + 1, self.staleness_max)
        )

    def offer(self, gradient: Any, pulled_version: int) -> list[Step]:
        """Takes an arrived gradient. Returns the steps to apply now: all waiting gradients, or none.

        Args:
            pulled_version: V when its learner pulled the policy.
        """
        self._pending.append((gradient, pulled_version))
        mean = sum(self.version - pulled for _, pulled in self._pending) / len(self._pending)
        return (
            self._aggregate() if mean <= self.bound or len(self._pending) >= self._learners else []
        )

    def end_update(self) -> tuple[list[Step], float]:
        """Ends an update after its last gradient. Returns the steps to apply now, and the mean staleness.

        All waiting gradients are applied, whatever the bound, because no more will arrive.
        """
        steps = self._aggregate() if self._pending else []
        mean = sum(self._applied) / len(self._applied) if self._applied else 0.0
        self._applied.clear()
        self.updates += 1
        if self.staleness_max is None and mean > 0:
            self.staleness_max = int(mean) + 1
        return steps, mean

    def get_state(self) -> dict[str, Any]:
        """Returns what resuming needs, as JSON values. Between updates no gradient waits."""
        return {
            "version": self.version,
            "updates": self.updates,
            "staleness_max": self.staleness_max,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from a state.

        Raises:
            KeyError: Something is missing.
        """
        self.version = int(state["version"])
        self.updates = int(state["updates"])
        self.staleness_max = None if state["staleness_max"] is None else int(state["staleness_max"])
        self._pending.clear()
        self._applied.clear()

    def _aggregate(self) -> list[Step]:
        steps = []
        for gradient, pulled in self._pending:
            staleness = self.version - pulled
            factor = 1.0 if self._root is None else max(staleness, 1) ** (-1.0 / self._root)
            steps.append(Step(gradient, staleness, factor))
        self._pending.clear()
        self._applied += [step.staleness for step in steps]
        self.version += 1
        return steps
