"""Describes a scheduler and its decisions as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from papers.minionsrl.scheduler.surrogate import Surrogate
from papers.minionsrl.scheduler.training import Episode
from runtime.scaler.saved_scheduler import FEATURES, SavedScheduler

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEFT = (1.0, 0.75, 0.5, 0.25, 0.05)
_POOR_R2 = 0.05


def fit_lines(surrogate: Surrogate) -> Iterator[str]:
    """Yields lines that describe a fit."""
    recorded = surrogate.recorded
    yield (
        f"{surrogate.workload['environment_id']}: {recorded['runs']} runs, {recorded['rounds']} rounds, "
        f"${recorded['usd']:.4f}, {recorded['seconds']:.0f} s (by counts)"
    )
    yield f"{'on runs left out':<28}{'R²':>8}{'RMSE':>12}"
    for name, error in surrogate.held_out.items():
        yield f"{name:<28}{error['r2']:>8.3f}{error['rmse']:>12.4g}"
    gain, without = (
        surrogate.held_out[name]["r2"] for name in ("return_gain", "return_gain_without_actors")
    )
    if gain < _POOR_R2:
        yield (
            f"! The gain of return can hardly be predicted (R² {gain:.3f}): a scheduler that is trained on this "
            "learns what rounds cost, not what they bring."
        )
    if gain - without < _POOR_R2:
        yield (
            f"! The number of actors explains {max(gain - without, 0.0):.3f} of the gain's variance: this recording "
            "does not show that more actors in a round bring more return in the next one."
        )


def comparison_lines(found: Mapping[str, Sequence[Episode]], *, actors_min: int) -> Iterator[str]:
    """Yields a comparison of rules on the surrogate, and whether the scheduler is the best.

    Args:
        found: The episodes of each rule.
        actors_min: Actors of the first action.
    """
    yield f"{'on the surrogate':<22}{'return':>9}{'reached':>9}{'seconds':>9}{'dollars':>10}{'actors':>8}"
    means = {
        name: float(np.mean([one.rewards.sum() for one in episodes]))
        for name, episodes in found.items()
    }
    actors = {
        name: actors_min + float(np.mean([one.actions.mean() for one in episodes]))
        for name, episodes in found.items()
    }
    for name, episodes in found.items():
        yield (
            f"{name:<22}{means[name]:>+9.3f}{np.mean([one.is_success for one in episodes]):>9.0%}"
            f"{np.mean([one.seconds for one in episodes]):>9.0f}{np.mean([one.usd for one in episodes]):>10.4f}"
            f"{actors[name]:>8.1f}"
        )
    best = max(
        (name for name in means if not name.startswith("scheduler")), key=lambda name: means[name]
    )
    mine = means["scheduler, sampled"]
    yield (
        f"The scheduler {'beats' if mine > means[best] else 'does not beat'} the best other rule, {best}: "
        f"{mine:+.3f} against {means[best]:+.3f}."
    )


def spent_usd(saved: SavedScheduler) -> float:
    """Returns the cost of its training: all of its history."""
    return sum(float(entry.get("usd", 0.0)) for entry in saved.history)


def scheduler_lines(saved: SavedScheduler) -> Iterator[str]:
    """Yields lines about a scheduler, its training and cost, and its decisions."""
    yield f"chooses from {saved.actors_min} to {saved.actors_max} actors; sha256 {saved.digest[:16]}"
    for number, entry in enumerate(saved.history, start=1):
        yield f"{number}. {entry.get('phase', 'trained')}"
        for key, value in entry.items():
            if key != "phase":
                yield (
                    f"   {key:<22}{value:.6g}"
                    if isinstance(value, float)
                    else f"   {key:<22}{value}"
                )
    yield f"all of this cost ${spent_usd(saved):.4f} (by counts), before the first run that used it"
    fields = saved.arrays
    seen = ", ".join(
        f"{name.replace('_', ' ')} {fields['observation_mean'][index]:.3g} ± "
        f"{fields['observation_std'][index]:.2g}"
        for index, name in enumerate(FEATURES)
        if name in ("return", "budget_left")
    )
    yield f"seen in training, as shares, mean and deviation: {seen}; far from these it guesses"
    yield "likeliest count, and the mean over the distribution; all else as on average in training:"
    yield "return/target" + "".join(f"{f'budget {left:.0%}':>16}" for left in _LEFT)
    for share in _SHARES:
        yield f"{share:>13.2f}" + "".join(f"{_decision(saved, share, left):>16}" for left in _LEFT)


def _decision(saved: SavedScheduler, share: float, left: float) -> str:
    state = np.array(saved.arrays["observation_mean"])
    state[FEATURES.index("return")], state[FEATURES.index("budget_left")] = share, left
    return _counts(saved, state)


def _counts(saved: SavedScheduler, state: np.ndarray) -> str:
    outputs = saved.policy.outputs(state).astype(np.float64)
    weights = np.exp(outputs - outputs.max())
    mean = saved.actors_min + float(weights @ np.arange(len(weights)) / weights.sum())
    return f"{saved.actors_min + int(outputs.argmax())} ({mean:.1f})"
