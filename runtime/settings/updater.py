"""What the settings of all updaters have in common, and the keys of learner functions, which several rooms read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from runtime.settings.kinds import Kinds
from runtime.settings.section import Field, Section, Unused

STELLARIS_PLACES = ("processes", "virtual", "lambda", "ray")
"""Where learner functions of Stellaris may run, by ``learner.stellaris.place``; a backend has some of them."""


class UpdaterSettings(Section):
    """What all updaters have; each may add keys of its own, which are a section inside the section ``learner``.

    Attributes:
        title: The updater's name for people.
        has_instance: Whether an instance stands; else the learner is a function, and another function runs the loop,
            or neither is there.
        has_actors: Whether what trains plays, too: then no other actors are started.
        is_external: Whether somebody else's trainer samples with the actors, so that nothing here trains.
        has_gradients: Whether each invocation of the learner function computes a gradient, of which several run at
            once, and not an update.
        is_exact: Whether its results equal, to the bit, those of training in place: a run may be continued with
            another one of these.
        is_tabled: Whether the table of rates tells how long its updates take.
        sections: Sections inside ``learner`` that it reads besides its own.
        unread: Keys of the experiment, dotted, that no run with this updater reads.
    """

    title: ClassVar[str] = "the updater"
    has_instance: ClassVar[bool] = True
    has_actors: ClassVar[bool] = False
    is_external: ClassVar[bool] = False
    has_gradients: ClassVar[bool] = False
    is_exact: ClassVar[bool] = False
    is_tabled: ClassVar[bool] = False
    sections: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[tuple[str, ...]] = ()

    @property
    def functions_at_once(self) -> int:
        """Learner functions that may run at the same time; 0 if the learner is no function."""
        return 0 if self.has_instance or self.is_external else 1

    @property
    def instances_at_once(self) -> int:
        """Instances that share a round of a resolved experiment; 0 if the learner is one process."""
        return 0

    def unused(self, prefix: str) -> Iterator[Unused]:
        """Yields the updater's keys that do not count with these values.

        Args:
            prefix: What the dotted names of its keys begin with.
        """
        yield from ()

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields what is wrong with values of the experiment that are each allowed."""
        yield from ()

    def make(self, learner: Any, remote: Any) -> Any:
        """Makes the updater; see `runtime.ports.learning.Updater`.

        Args:
            learner: What it trains.
            remote: The `runtime.learner.remote.updater.Remote` of a backend whose learner is a function; else None.
        """
        raise NotImplementedError


class LearnerFunctionSection(UpdaterSettings):
    """The functions of a learner that is one: what updates the policy, and what runs the loop."""

    memory_mib: Annotated[int, Field(ge=512, le=10_240)] = Field(
        1769, description="memory of the function that trains, MiB; 1769 buys one vCPU")
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(
        60, description="time limit of an update (stellaris: of a gradient), seconds; reserved in the budget each "
        "round")
    coordinator_memory_mib: Annotated[int, Field(ge=512, le=10_240)] = Field(
        1769, description="memory of the function that runs the loop, detector and evaluations, MiB")


class StellarisSection(UpdaterSettings):
    """Stellaris: how several learner functions compute gradients, and how these are applied."""

    place: Literal["auto", *STELLARIS_PLACES] = Field(  # type: ignore[valid-type]  # the constant's values
        "auto", description="where learner functions run; processes = on this machine; virtual = one at a time, "
        "ordered by recorded durations, so that a seed repeats its run; lambda = on AWS Lambda; ray = on the cluster "
        "of fleet.kind = ray; auto = lambda in a deployment, else processes")
    learners: Annotated[int, Field(ge=1, le=1000)] = Field(4, description="gradients computed in parallel")
    staleness_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.9, description="d of the staleness bound, which shrinks with each update; null = no bound, gradients are "
        "applied as they arrive")
    learning_rate_root: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        3.0, description="v: a gradient that is s versions old gets the learning rate times s^(−1/v); null = the whole "
        "learning rate")
    truncation: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        1.0, description="ρ: importance ratios are capped at ρ, or at the least ratio of all learners if larger; null "
        "= no cap")
    durations: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="file of benchmarks/durations.py for place = virtual, relative to the working directory")


UPDATERS = Kinds("learner", UpdaterSettings)
