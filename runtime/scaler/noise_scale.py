"""The theoretically cheapest batch, from the gradient noise scale and the cost of rounds and steps so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from runtime.ports.scaling import RoundView, ScalingDecision
from runtime.scaler.counts import BoundedScaler
from runtime.settings.scaler import ScalerSettings

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


class NoiseScaleSettings(ScalerSettings):
    """Settings of the scaler that looks for the cheapest batch."""

    about: ClassVar[str] = "takes the theoretically cheapest batch"
    signals: ClassVar[frozenset[str]] = frozenset({"noise_scale"})

    def make(self) -> NoiseScaleScaler:
        """Makes the scaler."""
        return NoiseScaleScaler(self)


def dollars(rows: Sequence[RoundRow], *, is_by_the_clock: bool) -> tuple[float, float]:
    """Splits the cost of rounds into a part that grows with their steps and a fixed part.

    Actors grow with steps, and so do running resources during updates. If actors cost nothing, they are the learner's
    own processes and queue, so running resources while they play also grow. The rest is fixed: running resources while
    a round waits for its slowest actor and for evaluations, and provisioned capacity.

    Returns:
        Dollars per round that do not grow with its steps, and dollars per step.
    """
    grows_usd = 0.0
    for row in rows:
        seconds = (
            row.round_s
            if is_by_the_clock
            else row.modelled_round_s + (row.modelled_evaluate_s or 0.0)
        )
        growing_s = row.modelled_learn_s + (0.0 if row.actors_cost_usd else row.collect_s)
        share = min(growing_s / seconds, 1.0) if seconds > 0.0 else 0.0
        grows_usd += row.actors_cost_usd + share * (
            row.learner_cost_usd + row.infrastructure_cost_usd
        )
    stays_usd = sum(row.round_cost_usd for row in rows) - grows_usd
    return max(stays_usd, 0.0) / len(rows), grows_usd / max(1, sum(row.env_steps for row in rows))


def cheapest_batch(noise_scale: float, round_usd: float, step_usd: float) -> float:
    """Returns B* = √(B_noise · F / c), in steps; infinite if steps cost nothing.

    Training to a given return takes rounds ∝ 1 + B_noise/B (McCandlish et al. 2018), each of which costs F + c·B; the
    product is least at B*.

    Args:
        noise_scale: B_noise, in samples.
        round_usd: F, dollars of a round that do not grow with its steps.
        step_usd: c, dollars per step.
    """
    if step_usd <= 0.0:
        return math.inf
    return math.sqrt(max(noise_scale, 0.0)) * math.sqrt(round_usd / step_usd)


class NoiseScaleScaler(BoundedScaler):
    """Gives a round the number of actors that samples the cheapest batch.

    The noise scale grows as a policy learns, so there are few actors early and more later. Dollars come from the rows
    that the scaler sees, however they are billed. Until there are a row and a noise scale, there are ``actors_min``
    actors. A round without a noise scale gets the count that the one before wanted.

    The theory assumes one optimizer step per round. Several epochs and minibatches make many small steps from a batch.
    While the algorithm keeps them near the acting policy, together they move about as far as one step of the batch's
    gradient, with the same noise. Epochs raise a step's dollars, and so shrink the batch. Samples count as independent,
    although neighbors in a fragment are not: the true noise scale is larger. In an asynchronous round the count is
    actors in flight, and updates take whatever has arrived, so B* is a guide at best.
    """

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides by the noise scale and earlier rows."""
        found, rows = view.signals["noise_scale"], view.rows
        if not rows:
            return ScalingDecision(self.actors_min)
        round_usd, step_usd = dollars(rows, is_by_the_clock=view.is_by_the_clock)
        if found is None or not math.isfinite(found) or round_usd + step_usd <= 0.0:
            return ScalingDecision(self.clipped(rows[-1].actor_count_wanted))
        actor_steps = sum(row.env_steps for row in rows) / max(
            1, sum(row.actors_returned for row in rows)
        )
        wanted = cheapest_batch(found, round_usd, step_usd) / max(actor_steps, 1.0)
        return ScalingDecision(self.clipped(wanted))
