"""Measures an experiment by running a few of its rounds on this machine."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lambda_actor.trial import TriedEnvironment
from runtime.errors import RunError
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment
from runtime.gmi.search import Profile, Profiler
from runtime.records.observers import Display
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.backends import make_backend
from runtime.training.callbacks import Callback, RunControl
from runtime.training.preflight import preflight
from runtime.training.run import train

ROUNDS = 6
"""Most rounds of a measurement. The first does not count, because it loads everything."""
PATIENCE_S = 30.0
"""Seconds after which no further round begins, once two have ended."""
Say = Callable[[str], None]
_MIB = 2**20


def changed(base: Experiment, changes: Mapping[str, Any], source: str) -> Experiment:
    """Returns the experiment with a tree of changes.

    Raises:
        ExperimentError: They do not suit it.
    """
    tree = base.model_dump(mode="json", exclude_unset=True)
    return experiment_from_tree(changes, base=tree, source=source)


class _Watch(Callback):
    """Tells each round, and ends a measurement that takes long."""

    actor_mib = 0

    def __init__(self, say: Say) -> None:
        self._say = say
        self._began_s = time.monotonic()

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        self.actor_mib = max(self.actor_mib, _peak_mib())
        self._say(f"  round {row.round_index} of at most {ROUNDS}: {row.round_s:.2f} s")
        if row.round_index > 1 and time.monotonic() - self._began_s > PATIENCE_S:
            run.stop("measured")


def _peak_mib() -> int:
    """Returns the peak memory of the largest actor, with the programs that it started, MiB; 0 without ``/proc``."""
    peaks_kib = dict[int, int]()
    children = defaultdict[int, list[int]](list)
    guards = list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        # Other programs' processes end meanwhile, or may not be read.
        with suppress(OSError):
            status = dict(
                line.split(":", 1) for line in (process / "status").read_text().splitlines()
            )
            process_id, parent_id = int(process.name), int(status["PPid"])
            peaks_kib[process_id] = int(status.get("VmHWM", "0").split()[0])
            children[parent_id].append(process_id)
            is_actor = b"runtime.fleet.actor_process" in (process / "cmdline").read_bytes()
            if is_actor and parent_id == os.getpid():
                guards.append(process_id)

    def below_kib(process_id: int) -> int:
        return sum(peaks_kib[child] + below_kib(child) for child in children[process_id])

    return math.ceil(max(map(below_kib, guards), default=0) / 1024)


@dataclass(frozen=True)
class MeasuredRounds:
    """Rounds that ran on this machine.

    Attributes:
        rows: The rounds, without the first.
        actor_mib: Peak memory of the largest actor, with the programs that it started, MiB; 0 if the system does not
            tell.
    """

    rows: list[RoundRow]
    actor_mib: int


def tried(experiment: ResolvedExperiment) -> tuple[TriedEnvironment, ResolvedExperiment]:
    """Refuses what cannot run on this machine; see `preflight`."""
    return preflight(experiment, make_backend(experiment))


def measure(experiment: ResolvedExperiment, say: Say) -> MeasuredRounds:
    """Runs rounds of an experiment that ends after `ROUNDS`.

    Raises:
        RunError: It does not run.
    """
    watch = _Watch(say)
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            experiment,
            Path(folder),
            backend=make_backend(experiment),
            resume=False,
            display=Display(),
            name="measurement",
            callbacks=[watch],
        )
        if result.exit_code >= 128:
            raise KeyboardInterrupt
        if result.error is not None:
            raise result.error
        directory = RunDirectory(Path(folder))
        rows = directory.read_rounds()[1:]
        directory.close()
    if not rows:
        raise RunError(
            f"nothing was measured: the first round ended the run ({result.summary['stop_reason']})"
        )
    return MeasuredRounds(rows, watch.actor_mib)


def limits(**stop: Any) -> dict[str, Any]:
    """Returns the changes for a measurement, which costs nothing and calls no callback of the user."""
    return {
        "stop": {"max_rounds": ROUNDS, "max_steps": None, **stop},
        "callbacks": [],
        "budget": {"usd": 1000.0},
    }


def make_profiler(base: Experiment, say: Say) -> Profiler:
    """Returns a function that measures an experiment's layouts; without instances, one learner and its actors."""

    def profile(instances: int, environments: int) -> Profile | None:
        name = (
            f"{instances} instances x {environments} environments" if instances else "one learner"
        )
        own = {"instances": instances, "environments": environments}
        changes = {
            **limits(target_return=None),
            "learner": own if instances else {"kind": "instance"},
            "evaluation": {"every_rounds": 0},
        }
        experiment = changed(base, changes, "--measure").resolved()
        try:
            measured = measure(experiment, lambda _: None)
        except RunError as error:
            say(f"  {name}: does not run: {error}")
            return None
        round_s = median(row.collect_s + row.learn_s for row in measured.rows)
        speed = measured.rows[0].env_steps / round_s
        memory_mib = median(row.instance_memory_mib or 0.0 for row in measured.rows)
        memory = f", {memory_mib:,.0f} MiB each" if instances else ""
        say(f"  {name}: {speed:,.0f} samples/s{memory}")
        return Profile(speed, round(memory_mib * _MIB))

    return profile
