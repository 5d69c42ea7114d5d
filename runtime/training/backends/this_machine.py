"""This machine as a backend: actors are processes, the cache is a local server, and nobody bills its seconds."""

from __future__ import annotations

import importlib.metadata
import math
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lambda_actor.cache import TrajectoryCache, redacted, split_credentials
from lambda_actor.errors import ActorError
from runtime.errors import ExperimentError, MissingExtraError
from runtime.experiment.learner import as_learner_functions
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet import ACTOR_HANDLER, ACTORS_HANDLER
from runtime.fleet.cache_server import EmbeddedServer
from runtime.fleet.inline import InlineFleet
from runtime.fleet.interfaces import Fleet
from runtime.fleet.opening import Opening, open_fleet
from runtime.fleet.settings import LocalSettings
from runtime.learner import LEARNER_HANDLER
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.money.prices import PRICES
from runtime.records.layout import LEDGER, LOCK, UPDATES
from runtime.records.run_directory import RunDirectory
from runtime.training.backends.cache import NO_CACHE, actor_event, open_cache
from runtime.training.costs import init_s, make_cost_model
from runtime.training.opening import Backend, LearnerFunctions, Resources

_BEAT_S = 1.0
"""Seconds between signs of life."""


class ThisMachine(Backend):
    """This machine as a place for runs.

    Attributes:
        prices: List prices of the equivalent AWS resources.
    """

    is_billed = False
    prices = PRICES

    def __init__(self, experiment: ResolvedExperiment) -> None:
        """Checks whether the experiment can run here.

        Args:
            experiment: Resolved.

        Raises:
            ExperimentError: It needs actors elsewhere, or another version of MuJoCo Warp.
            MissingExtraError: It needs MuJoCo Warp.
        """
        if experiment.fleet.kind == "lambda":
            raise ExperimentError(
                f"fleet.kind = {experiment.fleet.kind!r} needs a deployed learner (`make deploy`); "
                "allowed on this machine: auto | local"
            )
        if experiment.environment.backend == "warp":
            _require_warp()

    def open(self, opening: Opening) -> Resources:
        """Starts a server, if the run needs one and ``cache.url`` names none, and the actors' processes.

        Raises:
            ServerError: No server answers or can be started.
            FleetError: The processes cannot be started.
        """
        experiment, ran_s = opening.experiment, ran_after_ledger_s(opening.directory)
        has_ended = threading.Event()
        opening.stack.callback(has_ended.set)
        lock = opening.directory.path / LOCK
        threading.Thread(target=_tell_that_it_runs, args=[lock, has_ended], daemon=True).start()

        def make_meter(concurrency: int) -> Meter:
            return Meter(
                make_cost_model(
                    experiment,
                    opening.spaces,
                    self.prices,
                    concurrency=concurrency * experiment.environment.batch,
                ),
                Budget(experiment.budget.usd),
                init_s=init_s(experiment),
                concurrency=concurrency,
                events=opening.events,
            )

        opened = open_here(opening, make_meter)
        bill = f"seconds of this machine at list prices, {self.prices.region}, {self.prices.as_of}"
        return replace(
            opened,
            facts={**opened.facts, "bill": bill},
            learner=open_learner(opening)
            if experiment.learner.functions_at_once
            else opened.learner,
            ran_s=ran_s,
        )


def ran_after_ledger_s(directory: RunDirectory) -> float:
    """Returns how long a killed process ran after its last ledger, to a second; infinite if that is unknown."""
    try:
        ended_s = (directory.path / LOCK).stat().st_mtime
        return max(0.0, ended_s - (directory.path / LEDGER).stat().st_mtime) + _BEAT_S
    except OSError:
        return math.inf


def _tell_that_it_runs(lock: Path, has_ended: threading.Event) -> None:
    """Touches the lock of a run every second, so that it says until when a killed run ran."""
    while not has_ended.wait(_BEAT_S):
        with suppress(OSError):
            os.utime(lock)


MakeMeter = Callable[[int], Meter]
"""Makes a meter for the number of actors that may run at once."""


def open_here(opening: Opening, make_meter: MakeMeter) -> Resources:
    """Starts a run's actor processes, and a server for their messages if the run needs one and names none.

    Args:
        opening: The run; its stack closes everything.
        make_meter: Called when the actors can start.

    Returns:
        These, with facts about a server that is not the run's own, and with the instances that train, if any.

    Raises:
        ServerError: No server answers or can be started.
        FleetError: The processes cannot be started.
    """
    experiment = opening.experiment
    if experiment.learner.has_actors:
        from runtime.gmi.backend import open_instances

        store = _open_store(opening)
        instances = open_instances(opening, store)
        return Resources(
            instances.serving,
            instances.serving,
            make_meter(instances.serving.concurrency),
            instances.actor_event,
            instances.facts,
            learner=LearnerFunctions(instances.trainers, store),
        )
    if experiment.cache.kind == "none":
        inline = InlineFleet(_open_actors(opening, {}))
        meter = make_meter(inline.concurrency)
        return Resources(inline, inline, meter, {}, {"server": NO_CACHE})
    url = experiment.cache.url or opening.stack.opened(EmbeddedServer).url
    cache = open_cache(
        opening,
        url,
        username=os.environ.get("CACHE_USERNAME"),
        password=os.environ.get("CACHE_PASSWORD"),
    )
    if experiment.cache.url:
        opening.stack.callback(_remove_keys, cache)
    fleet = _open_actors(opening, _credentials_of_actors(url))
    return Resources(
        cache,
        fleet,
        make_meter(fleet.concurrency),
        actor_event(split_credentials(url)[0]),
        {"server": redacted(url)} if experiment.cache.url else {},
    )


def _require_warp() -> None:
    """Checks that MuJoCo Warp is installed, without loading it."""
    try:
        version = importlib.metadata.version("mujoco-warp")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError("environment.backend = 'warp'", "MuJoCo Warp", "warp") from None
    if not version.startswith("4."):
        raise ExperimentError(
            f"environment.backend = warp: mujoco-warp {version} is installed; allowed: 4.x, as "
            "pip install 'nitro-rl[warp]' brings it"
        )


def _open_actors(opening: Opening, credentials: Mapping[str, str]) -> Fleet:
    experiment = opening.experiment
    together = experiment.environment.vector
    return open_fleet(
        opening,
        experiment.fleet.make,
        concurrency=experiment.fleet.processes,
        credentials=credentials,
        timeout_s=experiment.actor.timeout_s,
        memory_mib=experiment.actor.memory_mib,
        function=ACTORS_HANDLER if together > 1 else ACTOR_HANDLER,
        together=together,
    )


def open_learner(opening: Opening) -> LearnerFunctions:
    """Opens the fleet of the learner's functions, and the folder for their objects."""
    # First, so that it is removed after the functions have ended.
    store = _open_store(opening)
    learner = as_learner_functions(opening.experiment.learner)
    fleet = open_fleet(
        opening,
        (learner.functions_fleet() or LocalSettings()).make,
        concurrency=min(learner.functions_at_once, opening.experiment.fleet.processes),
        timeout_s=learner.function_timeout_s,
        memory_mib=learner.function_memory_mib,
        credentials={},
        function=LEARNER_HANDLER,
    )
    return LearnerFunctions(fleet, store)


def _open_store(opening: Opening) -> str:
    """Returns a run's folder for objects of learner functions, without leftovers of an earlier session."""
    store = str((opening.directory.path / UPDATES).resolve())
    shutil.rmtree(store, ignore_errors=True)
    opening.stack.callback(shutil.rmtree, store, ignore_errors=True)
    return store


def _remove_keys(cache: TrajectoryCache) -> None:
    # If the server is gone, they expire.
    with suppress(ActorError):
        cache.remove_run()


def _credentials_of_actors(url: str) -> dict[str, str]:
    """Returns variables for the actors: the URL's credentials, or CACHE_USERNAME and CACHE_PASSWORD."""
    _, username, password = split_credentials(url)
    found = {
        "ACTOR_CACHE_USERNAME": username or os.environ.get("CACHE_USERNAME"),
        "ACTOR_CACHE_PASSWORD": password or os.environ.get("CACHE_PASSWORD"),
    }
    return {name: value for name, value in found.items() if value}
