"""Measures layouts of instances by running rounds of an experiment on this machine."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from runtime.config.loading import experiment_from_tree
from runtime.config.resolved import ResolvedExperiment
from runtime.config.schema import Experiment
from runtime.errors import RunError
from runtime.gmi.search import Profile, Profiler
from runtime.ports.run import Backend, Display
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.run import train

ROUNDS = 6
"""Rounds of a measurement. The first does not count, because it loads everything."""
_MIB = 2**20


class _Silent(Display):
    """Shows nothing, and records which reduction was chosen."""

    reduction = ""

    def event(self, kind: str, fields: Any) -> None:
        if kind == "reduction_chosen":
            self.reduction = fields["reduction"]


def make_profiler(
    base: Experiment,
    *,
    make_backend: Callable[[ResolvedExperiment], Backend],
    tell: Callable[[str], None],
) -> Profiler:
    """Returns a function that measures an experiment's layouts; without instances, one learner and its actors.

    Args:
        base: The experiment, with instances.
        make_backend: Makes the backend of a run on this machine.
        tell: Shows the current measurement.
    """
    tree = base.without_unused().model_dump(mode="json", exclude_unset=True)

    def profile(instances: int, environments: int) -> Profile | None:
        tell(
            f"  {instances} instances, {environments} environments each"
            if instances
            else "  one learner"
        )
        learner = (
            {"instances": instances, "environments": environments}
            if instances
            else {"kind": "instance"}
        )
        experiment = experiment_from_tree(
            {
                "learner": learner,
                "stop": {"max_rounds": ROUNDS, "max_steps": None, "target_return": None},
                "callbacks": [],
                "evaluation": {"every_rounds": 0},
            },
            base=tree,
            source="--measure",
        ).resolved()
        reduction = getattr(experiment.learner, "reduction", "")
        with tempfile.TemporaryDirectory() as folder:
            display = _Silent()
            result = train(
                experiment,
                Path(folder) / "run",
                backend=make_backend(experiment),
                resume=False,
                display=display,
                name="measurement",
            )
            if result.exit_code >= 128:
                raise KeyboardInterrupt
            if isinstance(result.error, RunError):
                tell(f"  does not run: {result.error}")
                return None
            directory = RunDirectory(Path(folder) / "run")
            rows = directory.read_rounds()[1:]
            directory.close()
        return _profile(rows, display.reduction or reduction, instances=max(1, instances))

    return profile


def _profile(rows: list[RoundRow], reduction: str, *, instances: int) -> Profile:
    def middle(value: Callable[[RoundRow], float | None]) -> float:
        return median(value(row) or 0.0 for row in rows)

    round_s = middle(lambda row: row.collect_s + row.learn_s)
    reduce_s = middle(lambda row: row.reduce_s)
    share = math.ceil(rows[0].actor_count / instances) * rows[0].env_steps / rows[0].actor_count
    return Profile(
        samples_per_s=share / max(round_s - reduce_s, 1e-9),
        reduction=reduction,
        reduction_s=reduce_s,
        round_s=round_s,
        memory_bytes=round(middle(lambda row: row.instance_memory_mib) * _MIB),
    )
