"""Settings of instances: how many, what each of them does, and how their gradients are summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from runtime.ports.learning import Updater
from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.section import Field
from runtime.settings.updater import UpdaterSettings

INSTANCES_MAX = 256
REDUCTIONS = ("paper", "mpr", "mrr", "har", "flat")


class GmiSettings(UpdaterSettings):
    """Settings of instances that share one machine."""

    title: ClassVar[str] = "instances of kind = gmi, which play and train on one machine"
    has_actors: ClassVar[bool] = True
    unread: ClassVar[tuple[str, ...]] = (
        "actor.memory_mib", "actor.provisioned", "cache.kind", "cache.url", "environment.vector", "fleet.processes")

    instances: Literal["auto"] | Annotated[int, Field(ge=1, le=INSTANCES_MAX)] = Field(
        "auto", description="instances; auto = one a core, in a deployment one a vCPU of the smallest of "
        "learner.instance_types, and no more than a round has actors")
    environments: Literal["auto"] | Annotated[int, Field(ge=1, le=16_384)] = Field(
        "auto", description="environments that an instance plays at the same time; auto = its share of a "
        "round's actors, at most 16, and all of it with environment.backend = warp. It does not change what is played")
    backend: Literal["auto", "cores", "mps", "mig", "none"] = Field(
        "auto", description="what an instance has of the machine; cores = cores of its own; mps = a share of a GPU by "
        "NVIDIA's MPS; mig = a slice of a GPU that is there already; none = what the system gives it; auto = mps if "
        "there is a GPU, else cores")
    reduction: Literal["auto", *REDUCTIONS] = Field(  # type: ignore[valid-type]  # the constant's values
        "auto", description="how gradients are summed; mpr = through the host's memory; mrr = in rings over GPUs; "
        "har = in each GPU, then over their leaders; flat = as PyTorch sums; paper = the paper's Algorithm 1 chooses; "
        "auto = what is measured to be the quickest when the run begins, and stays")

    @property
    def instances_at_once(self) -> int:
        """Its instances."""
        return self.instances if self.instances != "auto" else 0

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields what instances cannot have."""
        kind, algorithm = "learner.kind = gmi", experiment.algorithm
        if experiment.scaler.kind != "fixed":
            yield (f"scaler.kind = {experiment.scaler.kind}: a layout of {kind} stays as it is while a run goes on, "
                   "and with it the number of actors; allowed: fixed, or learner.kind = instance")
        if experiment.fleet.kind not in ("auto", "local"):
            yield f"fleet.kind = {experiment.fleet.kind}: instances play themselves ({kind}); allowed: auto | local"
        if algorithm.chosen.is_off_policy:
            yield (f"algorithm.kind = {algorithm.kind}: instances play and train in turns ({kind}); allowed: "
                   + " | ".join(kind for kind, one in ALGORITHMS.settings.items() if not one.is_off_policy)
                   + ", or learner.kind = instance")
        most = experiment.scaler.most_actors
        if self.instances != "auto" and self.instances > most:
            yield (f"learner.gmi.instances = {self.instances}: each plays one actor of a round at least, and a round "
                   f"has {most}; allowed: auto | 1 to {min(most, INSTANCES_MAX)}")

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.gmi.updater import InstancesUpdater

        return InstancesUpdater(learner, remote)
