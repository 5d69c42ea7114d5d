"""An updater whose learner is functions, with its costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.experiment.loading import experiment_from_tree
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet
from runtime.fleet.settings import LocalSettings
from runtime.learner import LEARNER_HANDLER, LearnerSpec, make_learner
from runtime.learner.functions.invoking import Remote
from runtime.learner.interfaces import Update
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from tests.helpers import command_line, cost_model, descendants
from tests.learner.learning import roll


class Remotely:
    """Trains remotely, and keeps the failures that it is told and what the ledgers reserved."""

    def __init__(
        self,
        settings: Any,
        fleet: Fleet,
        folder: Path,
        spec: LearnerSpec,
        *,
        budget_usd: float = 1.0,
        token: str = "session",
    ) -> None:
        tree = {
            "environment": {"id": "some:thing"},
            "budget": {"usd": 1.0},
            "learner": {"kind": settings.kind},
            "actor": {"provisioned": 0},
            "algorithm": {"epochs": 3, "minibatch_steps": 6},
        }
        experiment = experiment_from_tree(tree, source="test").resolved()
        self.spec, self.prices = spec, cost_model(experiment)
        self.meter, self.ledgers = Meter(self.prices, Budget(budget_usd)), list[float]()
        self.events = list[tuple[str, dict[str, Any]]]()
        save_ledger = lambda: self.ledgers.append(self.meter.reserved_usd)  # noqa: E731
        remote = Remote(spec, fleet, str(folder), token, self.meter, save_ledger, self)
        self.updater = settings.make(make_learner(spec, device="cpu"), remote)

    def append(self, kind: str, **fields: Any) -> None:
        self.events.append((kind, fields))

    def update(self, seed: int = 0, *, meanwhile: Callable[[], None] = lambda: None) -> Update:
        """Makes one round's update, on samples of the newest policy."""
        assert self.meter.open_standing()
        batch = roll(self.updater.weights(), self.spec.spaces, seed=seed)
        self.updater.submit(batch, progress=0.25)
        meanwhile()
        while not (updates := self.updater.poll(120.0)):
            pass
        self.meter.close_round(0.0)
        (update,) = updates
        return update


def real_processes(concurrency: int, log_path: Path) -> Fleet:
    """Returns a fleet whose learner functions are processes."""
    return LocalSettings().make(
        FleetSetup(
            concurrency=concurrency,
            timeout_s=100.0,
            memory_mib=1769,
            log_path=log_path,
            function=LEARNER_HANDLER,
        )
    )


def kill_a_function() -> None:
    """Sends SIGKILL to the first process of a learner function."""
    name = LEARNER_HANDLER.encode()
    os.kill(
        next(pid for pid in descendants(os.getpid()) if name in command_line(pid)), signal.SIGKILL
    )
