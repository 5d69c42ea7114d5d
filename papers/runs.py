"""One training of a study, and the prices of the papers' machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAPERS_LEARNER_USD_PER_HOUR, ACTORS_USD_PER_HOUR, LARGE_ACTORS_USD_PER_HOUR = 3.06, 0.68, 1.53
"""p3.2xlarge and c5.4xlarge (Nitro §8.1), and the c5.9xlarge of its §8.5, without serverless actors."""
INSTANCE_START_S = 60.0
"""A modelled minute until an instance for actors has started."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        file: The experiment.
        rule: Its group in comparisons: a scaler's kind, or an arm's name.
        candidate: One of the rule's settings.
        directory: The run's directory.
        needs: Directory of another run that must finish first, if any.
        step_s: The billed time of a step, in seconds of the measuring machine; None = as measured.
    """

    file: str
    rule: str
    candidate: str
    seed: int
    settings: dict[str, object]
    directory: Path
    needs: Path | None = None
    step_s: float | None = None

    @property
    def commits(self) -> Path:
        """A file next to the directory, with the commit of each session."""
        return self.directory.parent / f"{self.directory.name}.commits.txt"
