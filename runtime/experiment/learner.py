"""Settings that all updaters share, and the keys of learner functions, which several packages read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from runtime.experiment.fleet import FleetSettings
from runtime.experiment.instance_types import CPU_TYPES, GPU_TYPES
from runtime.experiment.kinds import Kinds
from runtime.experiment.section import OPEN, Field, Open, Section


class UpdaterSettings(Section):
    """Base of every updater's settings: where the policy is trained, and its time limits. Subclasses may add keys.

    Attributes:
        title: The updater's name for people.
        has_instance: Whether there is a learner instance. Otherwise the learner is a function and another one runs the
            loop, or training is external.
        has_actors: Whether the trainers also play, so that no other actors start.
        is_external: Whether an external trainer samples with the actors, and nothing here trains.
        has_gradients: Whether an invocation of the learner function computes a gradient instead of an update, and
            several run at once.
        is_exact: Whether its results are bit-identical to training in place. A run may switch between such updaters.
    """

    has_instance: ClassVar[bool] = True
    has_actors: ClassVar[bool] = False
    is_external: ClassVar[bool] = False
    has_gradients: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False

    kind: str = Field("", description="where the policy is trained")
    instance_types: Open[Annotated[tuple[str, ...], Field(min_length=1, strict=False)]] = Field(
        OPEN,
        description="EC2 types to try, in this order if on demand; the first one's price also bills runs on one "
        f"machine; null = {', '.join(CPU_TYPES)}, or {', '.join(GPU_TYPES)} for Atari games and conv or combined "
        "networks",
    )
    market: Literal["on_demand", "spot"] = Field(
        "on_demand",
        description="spot may be interrupted, and counts at the on-demand price",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto = cuda if available")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        2,
        description="CPU threads of an update; from two on, policy and critic train in parallel. Rounding "
        "may differ, except between one and two with fully connected networks",
    )
    update_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = Field(
        120,
        description="time limit of a round's detection, update and evaluation, seconds (asynchronous: "
        "after its deadline). Reserved in the budget; exceeding it ends the run",
    )

    @property
    def functions_at_once(self) -> int:
        """Returns how many learner functions may run at once; 0 if the learner is not a function."""
        return 0 if self.has_instance or self.is_external else 1

    @property
    def instances_at_once(self) -> int:
        """Returns how many instances share a round of a resolved experiment; 0 if the learner is one process."""
        return 0

    @property
    def trainers(self) -> int:
        """Returns the number of instances that train and do not play."""
        return 0

    def continued(self, experiment: Any, before: Any) -> Any:
        """Returns an experiment with what its file leaves open taken from the run that it continues.

        Args:
            experiment: The experiment, whose learner this is.
            before: Settings of that run.
        """
        return experiment

    def functions_fleet(self) -> FleetSettings | None:
        """Returns the settings of the fleet of its learner functions on this machine; None for processes."""
        return None

    def filled_in(self, experiment: Any, *, is_deployed: bool, cores: int) -> Mapping[str, Any]:
        """Returns the values of the updater's own keys that the file leaves open.

        Args:
            experiment: The experiment as written.
            is_deployed: Whether the run is on a learner deployed to AWS.
            cores: Cores of the machine that runs it.
        """
        return {}

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from ()

    def make(self, learner: Any, remote: Any) -> Any:
        """Makes the updater; see `runtime.learner.updaters.Updater`.

        Args:
            learner: The learner to train.
            remote: The `runtime.learner.functions.invoking.Remote` of a backend whose learner is a function; otherwise
                None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method make")


COORDINATOR_MEMORY_MIB = 1769
"""Memory of the function that runs the loop, detector and evaluations: one vCPU."""


class LearnerFunctionSettings(UpdaterSettings):
    """Base of the settings of serverless learners: functions update the policy, another one runs the loop."""

    has_instance: ClassVar[bool] = False

    function_memory_mib: Annotated[int, Field(ge=512, le=10_240)] = Field(
        1769, description="memory of a function that trains, MiB; 1769 buys one vCPU"
    )
    function_timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(
        60,
        description="time limit of an update (stellaris: of a gradient), seconds; reserved each round",
    )


def as_learner_functions(learner: UpdaterSettings) -> LearnerFunctionSettings:
    """Returns the settings of a learner that is known to be functions."""
    assert isinstance(learner, LearnerFunctionSettings), f"{learner.kind} is no function"
    return learner


UPDATERS = Kinds(
    "learner",
    UpdaterSettings,
    "where the policy is trained; instance = on an EC2 instance, with the loop; function = in a function for each "
    "update (same results); stellaris = in several functions that compute gradients in parallel; gmi = in instances "
    "that share one machine and also play; external = in your own trainer, with nitro_rl.ActorPool",
)
