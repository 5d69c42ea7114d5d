"""The batch that is cheapest by theory: from the gradient noise scale, and from what rounds and steps have cost."""

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
    """Splits what rounds cost into what grows with their steps and what does not.

    Actors grow, and so does what stands while the update lasts. If actors cost nothing, they are the learner's own
    processes, and what stands while they play grows, too: they queue. All else stays: what stands while a round waits
    for its slowest actor and for evaluations, and capacity that is kept warm.

    Returns:
        Dollars of a round that do not grow with its steps, and dollars of one step.
    """
    grows_usd = 0.0
    for row in rows:
        seconds = row.round_s if is_by_the_clock else row.modelled_round_s + (row.modelled_evaluate_s or 0.0)
        growing_s = row.modelled_learn_s + (0.0 if row.actors_cost_usd else row.collect_s)
        share = min(growing_s / seconds, 1.0) if seconds > 0.0 else 0.0
        grows_usd += row.actors_cost_usd + share * (row.learner_cost_usd + row.infrastructure_cost_usd)
    stays_usd = sum(row.round_cost_usd for row in rows) - grows_usd
    return max(stays_usd, 0.0) / len(rows), grows_usd / max(1, sum(row.env_steps for row in rows))


def cheapest_batch(noise_scale: float, round_usd: float, step_usd: float) -> float:
    """Returns B* = √(B_noise · F / c), in steps; infinite if steps cost nothing.

    A training to a given return takes rounds ∝ 1 + B_noise/B (McCandlish et al. 2018), each of which costs F + c·B;
    the product is least at B*.

    Args:
        noise_scale: B_noise, in samples.
        round_usd: F, dollars of a round that do not grow with its steps.
        step_usd: c, dollars of one step.
    """
    if step_usd <= 0.0:
        return math.inf
    return math.sqrt(max(noise_scale, 0.0)) * math.sqrt(round_usd / step_usd)


class NoiseScaleScaler(BoundedScaler):
    """Gives a round as many actors as sample the cheapest batch.

    The noise scale grows while a policy learns, so there are few actors early and more late. Dollars are those of the
    rows that the scaler is shown, whatever they are billed by. Until there are a row and a noise scale there are
    ``actors_min`` actors; a round without a noise scale has as many as the one before wanted.

    The theory assumes one optimiser step a round. Several epochs and minibatches make many small steps out of a
    batch; as long as the algorithm keeps them near the acting policy, together they go about as far as one step by
    the batch's gradient, and are as noisy as that. Epochs make a step's dollars larger, so the batch smaller. Samples
    count as if they were independent, which neighbours in a fragment are not: the true noise scale is larger. In an
    asynchronous round the count is that of actors in flight, and updates take what has arrived, so that B* is a guide
    at best.
    """

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides by the noise scale, and by the rows of the rounds before."""
        found, rows = view.signals["noise_scale"], view.rows
        if not rows:
            return ScalingDecision(self.actors_min)
        round_usd, step_usd = dollars(rows, is_by_the_clock=view.is_by_the_clock)
        if found is None or not math.isfinite(found) or round_usd + step_usd <= 0.0:
            return ScalingDecision(self.clipped(rows[-1].actor_count_wanted))
        actor_steps = sum(row.env_steps for row in rows) / max(1, sum(row.actors_returned for row in rows))
        wanted = cheapest_batch(found, round_usd, step_usd) / max(actor_steps, 1.0)
        return ScalingDecision(self.clipped(wanted))
