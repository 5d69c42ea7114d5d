"""Settings that all updaters share, and the keys of learner functions, which several packages read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from runtime.settings.fleet import FleetSettings
from runtime.settings.kinds import Kinds
from runtime.settings.section import Field, Section, Unused

STELLARIS_PLACES = ("processes", "lambda", "ray")
"""Places for Stellaris's learner functions, the values of ``learner.stellaris.place``; each backend offers some of
them.
"""


class UpdaterSettings(Section):
    """Base of every updater's settings. Keys of a subclass form a section of their own inside ``learner``.

    Attributes:
        title: The updater's name for people.
        has_instance: Whether there is a learner instance. Otherwise the learner is a function and another one runs the
            loop, or training is external.
        has_actors: Whether the trainers also play, so that no other actors start.
        is_external: Whether an external trainer samples with the actors, and nothing here trains.
        has_gradients: Whether an invocation of the learner function computes a gradient instead of an update, and
            several run at once.
        is_exact: Whether its results are bit-identical to training in place. A run may switch between such updaters.
        is_tabled: Whether the table of rates has the duration of its updates.
        sections: Sections inside ``learner`` that it reads in addition to its own.
        unread: Dotted keys of the experiment that no run with this updater reads.
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
        """Returns how many learner functions may run at once; 0 if the learner is not a function."""
        return 0 if self.has_instance or self.is_external else 1

    @property
    def instances_at_once(self) -> int:
        """Returns how many instances share a round of a resolved experiment; 0 if the learner is one process."""
        return 0

    def functions_fleet(self) -> FleetSettings | None:
        """Returns the settings of the fleet of its learner functions on this machine; None for processes."""
        return None

    def unused(self, prefix: str) -> Iterator[Unused]:
        """Yields the updater's keys that have no effect with these values.

        Args:
            prefix: Prefix of its dotted keys.
        """
        yield from ()

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from ()

    def make(self, learner: Any, remote: Any) -> Any:
        """Makes the updater; see `runtime.ports.learning.Updater`.

        Args:
            learner: The learner to train.
            remote: The `runtime.learner.remote.updater.Remote` of a backend whose learner is a function; otherwise
                None.
        """
        raise NotImplementedError


COORDINATOR_MEMORY_MIB = 1769
"""Memory of the function that runs the loop, detector and evaluations: one vCPU."""


class LearnerFunctionSection(UpdaterSettings):
    """The functions of a serverless learner: one updates the policy, another runs the loop."""

    memory_mib: Annotated[int, Field(ge=512, le=10_240)] = Field(
        1769, description="memory of the function that trains, MiB; 1769 buys one vCPU"
    )
    timeout_s: Annotated[int, Field(ge=1, le=900)] = Field(
        60,
        description="time limit of an update (stellaris: of a gradient), seconds; reserved in the budget each "
        "round",
    )


class StellarisSection(UpdaterSettings):
    """How Stellaris's learner functions compute gradients, and how these are applied."""

    place: Literal["auto", *STELLARIS_PLACES] = Field(  # type: ignore[valid-type]  # the constant's values
        "auto",
        description="where learner functions run; processes = on this machine; lambda = on AWS "
        "Lambda; ray = on the cluster of fleet.kind = ray; auto = lambda in a deployment, else processes",
    )
    learners: Annotated[int, Field(ge=1, le=1000)] = Field(
        4, description="gradients computed in parallel"
    )
    staleness_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.9,
        description="d of the staleness bound, which shrinks with each update; null = no bound, gradients are "
        "applied as they arrive",
    )
    learning_rate_root: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        3.0,
        description="v: a gradient that is s versions old gets the learning rate times s^(−1/v); null = the whole "
        "learning rate",
    )
    truncation: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        1.0,
        description="ρ: importance ratios are capped at ρ, or at the least ratio of all learners if larger; null "
        "= no cap",
    )


UPDATERS = Kinds("learner", UpdaterSettings)
