"""Describes a scheduler and its decisions as text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from runtime.scaler.saved_scheduler import FEATURES, SavedScheduler


def spent_usd(saved: SavedScheduler) -> float:
    """Returns the cost of its training: all of its history."""
    return sum(float(entry["usd"]) for entry in saved.history)


def scheduler_lines(saved: SavedScheduler) -> Iterator[str]:
    """Yields lines about a scheduler, its training and cost, and its decisions."""
    yield f"chooses from {saved.actors_min} to {saved.actors_max} actors; sha256 {saved.digest[:16]}"
    for number, entry in enumerate(saved.history, start=1):
        yield f"{number}. {entry['phase']}"
        for key, value in entry.items():
            if key != "phase":
                shown = f"{value:.6g}" if isinstance(value, float) else value
                yield f"   {key:<22}{shown}"
    yield f"all of this cost ${spent_usd(saved):.4f} (by counts), before the first run that used it"
    index = FEATURES.index("return")
    mean, deviation = (saved.arrays[f"observation_{moment}"][index] for moment in ("mean", "std"))
    yield f"return/target in training: {mean:.2f} ± {deviation:.2f}; far from these it guesses"
    yield "likeliest count, and the mean count; all other inputs as on average in training:"
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        state = np.array(saved.arrays["observation_mean"])
        state[index] = share
        yield f"   return/target {share:.2f}   {_counts(saved, state)}"


def _counts(saved: SavedScheduler, state: np.ndarray) -> str:
    outputs = saved.policy.outputs(state).astype(np.float64)
    weights = np.exp(outputs - outputs.max())
    mean = saved.actors_min + float(weights @ np.arange(len(weights)) / weights.sum())
    return f"{saved.actors_min + int(outputs.argmax())} ({mean:.1f})"
