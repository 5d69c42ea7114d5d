"""A recorded run's counts in random order: the arm that shows what a signal is worth.

Both runs start as many actors, and spend the same except for measurements. Only the assignment to rounds is random.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def permuted_schedule(run: Path, *, seed: int, parts: int = 3) -> list[tuple[int, int]]:
    """Returns ``scaler.schedule`` with a run's counts in random order within each part of the run.

    Args:
        run: The recorded run's directory.
        seed: Seed of the order.
        parts: Parts of nearly equal numbers of rounds; 3 keeps a decay over the rounds, 1 does not.
    """
    lines = (run / "rounds.jsonl").read_text().splitlines()
    counts = np.array([json.loads(line)["actor_count_wanted"] for line in lines])
    generator = np.random.default_rng(seed)
    order = [generator.permutation(part) for part in np.array_split(counts, parts)]
    return list(enumerate(np.concatenate(order).tolist(), start=1))
