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
        1769, description="memory of the function that updates the policy, MiB; 1769 buy one vCPU")
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(
        60, description="an update, with kind = stellaris a gradient, is ended after this, seconds; reserved in the "
        "budget with each round")
    coordinator_memory_mib: Annotated[int, Field(ge=512, le=10_240)] = Field(
        1769, description="memory of the function that runs the loop, detects and evaluates, MiB")


class StellarisSection(UpdaterSettings):
    """Stellaris: how several learner functions compute gradients, and how these are applied."""

    place: Literal["auto", *STELLARIS_PLACES] = Field(  # type: ignore[valid-type]  # the constant's values
        "auto", description="where learner functions run; auto = on AWS Lambda in a deployment, else processes; "
        "processes = on this machine; virtual = in the process of the loop, one after the other, in an order that the "
        "durations of a file decide, so that the same seed gives the same run; lambda = on AWS Lambda; ray = on the "
        "Ray cluster of fleet.kind = ray")
    learners: Annotated[int, Field(ge=1, le=1000)] = Field(
        4, description="gradients that are computed at the same time")
    staleness_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.9, description="d of the staleness bound, which shrinks from update to update; null = no bound: each "
        "gradient is applied when it arrives")
    learning_rate_root: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        3.0, description="v: a gradient that is s versions old moves the policy by the learning rate times s^(−1/v); "
        "null = by the whole learning rate, however old it is")
    truncation: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        1.0, description="ρ, the least cap on a sample's importance ratio; the cap is the least ratio that any learner "
        "has, where that is larger; null = no ratio is cut")
    durations: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="file of recorded durations for place = virtual, relative to where the program is started; "
        "benchmarks/durations.py writes one")


UPDATERS = Kinds("learner", UpdaterSettings)
