"""Settings of instances: their number, their roles, and how their gradients are summed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.learner import UpdaterSettings
from runtime.experiment.section import Field

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater

INSTANCES_MAX = 256
ENVIRONMENTS_MAX = 16
"""Most environments that an instance plays at once, unless they are worlds; more save little."""


class GmiSettings(UpdaterSettings):
    """Settings of instances that share one machine."""

    has_actors: ClassVar[bool] = True

    # An instance usually has one core.
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="CPU threads of an update, per instance"
    )
    layout: Literal["holistic", "asynchronous"] = Field(
        "holistic",
        description="holistic = every instance plays and trains; asynchronous = three of four play, the "
        "fourth trains, and neither waits",
    )
    instances: Literal["auto"] | Annotated[int, Field(ge=1, le=INSTANCES_MAX)] = Field(
        "auto",
        description="auto = one per core, in a deployment per vCPU of the smallest instance type, at most "
        "one player per actor",
    )
    environments: Literal["auto"] | Annotated[int, Field(ge=1, le=16_384)] = Field(
        "auto",
        description="environments that an instance plays at once; auto = its share of a round's actors, "
        "at most 16. Worlds are all played at once",
    )
    saturation: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        0.1,
        description="α: `plan --measure` tries no more environments in an instance once throughput has "
        "twice grown by less than this fraction of memory's growth",
    )
    tf32: bool = Field(
        True,
        description="whether a GPU that plays worlds multiplies matrices in TF32 (10 bits)",
    )
    backend: Literal["auto", "cores", "mps", "mig", "none"] = Field(
        "auto",
        description="an instance's part of the machine; cores = its own cores; mps = a GPU share by "
        "NVIDIA's MPS; mig = an existing GPU slice; none = whatever the system gives; auto = "
        "mps with a GPU, else cores",
    )
    reduction: Literal["auto", "mpr", "mrr", "har"] = Field(
        "auto",
        description="how gradients are summed; mpr = through host memory; mrr = in rings over GPUs; har = "
        "in each GPU, then over their leaders; auto = by GMI-DRL's Algorithm 1",
    )

    @property
    def instances_at_once(self) -> int:
        """Returns the number of instances that play."""
        return self.instances - self.trainers if self.instances != "auto" else 0

    @property
    def trainers(self) -> int:
        """Returns the number of instances that train and do not play."""
        if self.layout == "holistic" or self.instances == "auto":
            return 0
        return max(1, self.instances // 4)

    def filled_in(self, experiment: Any, *, is_deployed: bool, cores: int) -> Mapping[str, Any]:
        """Returns the number of instances, and of environments that each plays at once."""
        actors, instances = experiment.scaler.most_actors, self.instances
        has_worlds = experiment.environment.has_worlds
        if instances == "auto" and has_worlds:
            instances = 1
        elif instances == "auto":
            is_holistic = self.layout == "holistic"
            instances = min(cores, actors) if is_holistic else max(2, min(cores, actors + 1))
        play = self.model_copy(update={"instances": instances}).instances_at_once
        most = actors if has_worlds else ENVIRONMENTS_MAX
        share = min(most, math.ceil(actors / play))
        return {
            "instances": instances,
            "environments": share if self.environments == "auto" else self.environments,
        }

    def continued(self, experiment: Any, before: Any) -> Any:
        """Returns an experiment with the layout of the run that it continues, as far as its file leaves that open."""
        if before.learner.kind != experiment.learner.kind:
            return experiment
        keys = {"instances", "environments"} - self.model_fields_set
        learner = self.model_copy(update={key: getattr(before.learner, key) for key in keys})
        environment = experiment.environment.model_copy(update={"vector": learner.environments})
        return experiment.model_copy(update={"learner": learner, "environment": environment})

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that instances do not support."""
        kind, algorithm = "learner.kind = gmi", experiment.algorithm
        if experiment.scaler.kind != "fixed":
            yield (
                f"scaler.kind = {experiment.scaler.kind}: a layout of {kind} and its number of actors cannot "
                "change during a run; allowed: fixed, or learner.kind = instance"
            )
        if experiment.fleet.kind not in ("auto", "local"):
            yield f"fleet.kind = {experiment.fleet.kind}: instances play themselves ({kind}); allowed: auto | local"
        is_holistic = self.layout == "holistic"
        if is_holistic and algorithm.is_asynchronous:
            yield (
                "algorithm.rounds = asynchronous: with learner.layout = holistic, instances play and train in "
                "turns; allowed: synchronous, or learner.layout = asynchronous, or learner.kind = instance"
            )
        if not is_holistic and not algorithm.is_off_policy:
            yield (
                f"algorithm.kind = {algorithm.kind}: with learner.layout = asynchronous, instances train on "
                "what older versions played; allowed: "
                + " | ".join(kind for kind, one in ALGORITHMS.settings.items() if one.is_off_policy)
                + ", or learner.layout = holistic"
            )
        # One more can train.
        fewest, most = (1, 0) if is_holistic else (2, 1)
        most += experiment.scaler.most_actors
        if self.instances != "auto" and not fewest <= self.instances <= most:
            yield (
                f"learner.instances = {self.instances}: each that plays needs an actor of a round, which has "
                f"{experiment.scaler.most_actors}; allowed: auto | {fewest} to {most}"
            )

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.gmi.fleet import instances_behind
        from runtime.gmi.updater import InstancesUpdater
        from runtime.gmi.worlds.updater import WorldsUpdater
        from runtime.learner import device_of

        instances = instances_behind(remote.fleet)
        device = device_of(self.device)
        timeout_s = float(self.update_timeout_s)
        if (worlds := instances.worlds) is not None:
            timeout_s += worlds.timeout_s
            return WorldsUpdater(
                learner, remote, instances, worlds, device=device, timeout_s=timeout_s
            )
        return InstancesUpdater(learner, remote, instances, device=device, timeout_s=timeout_s)
