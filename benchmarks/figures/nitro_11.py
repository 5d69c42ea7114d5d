"""Nitro Fig. 11: episodic rewards of IMPACT through fifty rounds, with Nitro and with 16 actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.figures import efficiency

PAPER = (
    "§8.2: as Fig. 10, with IMPACT; the final reward is up to 3 times that of the serverful IMPACT. IMPACT completes "
    "fifty rounds sooner than PPO.")
METHOD = "as Fig. 10, with experiments/paper/hopper-impact.yaml; Walker2d is left out, too."
draw, verdict = efficiency.draw, efficiency.verdict


def measure(work: Path) -> dict[str, Any]:
    return efficiency.measure("impact", work)
