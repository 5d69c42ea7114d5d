"""Opens what a run needs, and closes it at the run's end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet
from runtime.records.layout import ACTORS_LOG

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from lambda_actor.trial import TriedEnvironment
    from runtime.experiment.resolved import ResolvedExperiment
    from runtime.records.observers import EventLog
    from runtime.records.run_directory import RunDirectory

Made = TypeVar("Made")


class ShieldedStack(ExitStack):
    """Closes what was opened, newest first.

    Attributes:
        shield: Makes a block that an interrupt cannot split.
    """

    def __init__(self, shield: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Starts empty."""
        super().__init__()
        self.shield = shield

    def opened(self, make: Callable[[], Made]) -> Made:
        """Opens something that has a ``close``; an interrupt can't come between opening it and noting that."""
        with self.shield():
            made = make()
            self.callback(made.close)  # type: ignore[attr-defined]  # see above
        return made


@dataclass(eq=False)
class Opening:
    """One process's share of a run, or a pool, before its resources are open.

    Attributes:
        experiment: Resolved and fitted to its environment.
        environment: The trial's result.
        directory: The run's, which this process has locked.
        stack: Closes what is opened, at the run's end.
        run_id: Id of this process's share. A resumed run gets another one.
        events: Records events other than finished rounds.
    """

    experiment: ResolvedExperiment
    environment: TriedEnvironment
    directory: RunDirectory
    stack: ShieldedStack
    run_id: str
    events: EventLog

    @property
    def spaces(self) -> Spaces:
        """The environment's spaces."""
        return self.environment.spaces


def open_fleet(opening: Opening, make: Callable[[FleetSetup], Fleet], **fields: Any) -> Fleet:
    """Makes a fleet for a run.

    Args:
        opening: The run; its stack closes the fleet.
        make: Makes the fleet, as its settings do.
        **fields: Other fields of `FleetSetup`.

    Raises:
        FleetError: It cannot be started.
    """
    setup = FleetSetup(log_path=opening.directory.path / ACTORS_LOG, **fields)
    fleet: Fleet = opening.stack.opened(lambda: make(setup))
    return fleet
