"""Where a run takes place: what it gets there for a cache, a fleet and a bill. The rest of a run does not differ."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any, Protocol

from lambda_actor.cache import TrajectoryCache, redacted, split_credentials
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import ActorError
from lambda_actor.policy import parameter_shapes
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from lambda_actor.wire import MESSAGE_BYTES_MAX
from runtime.backends.cache_server import EmbeddedServer
from runtime.config.schema import Experiment
from runtime.cost.budget import Budget
from runtime.cost.meter import Meter
from runtime.cost.model import CostModel
from runtime.cost.prices import PRICES, PriceTable
from runtime.errors import ExperimentError, ServerError
from runtime.fleet import FleetSetup, make_fleet
from runtime.interfaces import Fleet, Sampler
from runtime.records.events import EventLog
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.training.signals import Signals

_SMALLEST_CONCURRENCY = 10
"""What a new AWS account may have of concurrent executions."""


class Place(Protocol):
    """One of them. Its methods are called in this order."""

    cost_basis: str
    """``modelled``, or ``metered`` where durations are those that are billed."""
    prices: PriceTable
    """What the bill is made from."""

    def download(self, directory: RunDirectory) -> None:
        """Puts what is kept elsewhere of the run into the directory, before anything there is looked at."""

    def open_cache(self, run_id: str, stack: ExitStack, events: EventLog) -> TrajectoryCache:
        """A cache that answers; ``stack`` closes it, and its server. Raises `ServerError` where none does."""

    def event_fields(self) -> dict[str, Any]:
        """How actors reach that cache, for their events."""

    def facts(self) -> dict[str, str]:
        """What people are told."""

    def open_fleet(self, directory: RunDirectory) -> Fleet:
        """Raises: FleetError: No actor can run."""

    def open_meter(self, environment: ActorEnvironment, fleet: Fleet) -> Meter: ...

    def spent_usd(self) -> float:
        """The least that the run has cost before this process, by what is kept elsewhere than in its directory."""

    def begin(
        self, sampler: Sampler, meter: Meter, events: EventLog, event_fields: Mapping[str, Any],
        save_ledger: Callable[[], None],
    ) -> None:
        """Done when everything is there, right before the first round; ``event_fields`` go into every event."""

    def ledger_changed(self, ledger: bytes, meter: Meter) -> None:
        """Called before what the ledger promises is used."""

    def round_saved(self, row: RoundRow) -> None: ...

    def end(self) -> None:
        """Called when all of the run's files are written."""


class OnThisMachine:
    """Actors are processes here, the cache is a server of our own or the user's, and the bill is modelled."""

    cost_basis = "modelled"
    prices = PRICES

    def __init__(self, experiment: Experiment, signals: Signals) -> None:
        """Raises: ExperimentError: The experiment wants Lambda actors."""
        if experiment.fleet.kind == "lambda":
            raise ExperimentError(f"fleet.kind = {experiment.fleet.kind!r} needs a deployed learner (`make deploy`); "
                                  "allowed on this machine: auto | local")
        self._experiment, self._signals = experiment, signals
        self._url, self._program = experiment.cache.url or "", "given by cache.url"

    def download(self, directory: RunDirectory) -> None:
        pass

    def open_cache(self, run_id: str, stack: ExitStack, events: EventLog) -> TrajectoryCache:
        if not self._url:
            with self._signals.shield():
                server = EmbeddedServer(self._experiment.cache.memory_mib)
                stack.callback(server.close)
            self._url, self._program = server.url, server.program
        cache = open_cache(self._experiment, self._url, run_id, stack, **_own_credentials())
        if self._experiment.cache.url:
            stack.callback(self._remove_keys, run_id, events)
        return cache

    def event_fields(self) -> dict[str, Any]:
        return {"cache_url": split_credentials(self._url)[0], "cache_credential": ""}

    def facts(self) -> dict[str, str]:
        return {"server": f"{redacted(self._url)} ({self._program})",
                "bill": f"modelled from list prices, {PRICES.region}, {PRICES.as_of}"}

    def open_fleet(self, directory: RunDirectory) -> Fleet:
        return make_fleet(self._experiment.fleet.kind, FleetSetup(
            concurrency=self._experiment.fleet.processes, timeout_s=self._experiment.actor.timeout_s,
            memory_mib=self._experiment.actor.memory_mib, log_path=directory.actors_log_path,
            credentials=_credentials_of_actors(self._url)))

    def open_meter(self, environment: ActorEnvironment, fleet: Fleet) -> Meter:
        return Meter(make_cost_model(self._experiment, environment), Budget(self._experiment.budget.usd))

    def spent_usd(self) -> float:
        return 0.0

    def begin(
        self, sampler: Sampler, meter: Meter, events: EventLog, event_fields: Mapping[str, Any],
        save_ledger: Callable[[], None],
    ) -> None:
        pass

    def ledger_changed(self, ledger: bytes, meter: Meter) -> None:
        pass

    def round_saved(self, row: RoundRow) -> None:
        pass

    def end(self) -> None:
        pass

    def _remove_keys(self, run_id: str, events: EventLog) -> None:
        try:
            with closing(_cache(self._experiment, self._url, run_id, connect_attempts=0,
                                **_own_credentials())) as cache:
                cache.remove_run()
        except ActorError as error:
            with suppress(OSError):
                events.append("keys_left_behind", error=str(error), expire_after_s=cache_ttl_s(self._experiment))


def open_cache(experiment: Experiment, url: str, run_id: str, stack: ExitStack, **credentials: Any) -> TrajectoryCache:
    """A cache that answers; ``stack`` closes it.

    Raises:
        ServerError: It does not.
    """
    try:
        cache = _cache(experiment, url, run_id, **credentials)
        stack.callback(cache.close)
        cache.ping()
    except ActorError as error:
        raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
    return cache


def cache_ttl_s(experiment: Experiment) -> int:
    """Longer than two rounds can last, so that nothing runs out under an actor that goes on from one to the next."""
    fleet = experiment.fleet
    waves = experiment.scaler.waves(_SMALLEST_CONCURRENCY if fleet.kind == "lambda" else fleet.processes)
    return 2 * (fleet.round_deadline_s * waves + experiment.learner.update_timeout_s) + 600


def make_cost_model(
    experiment: Experiment, environment: ActorEnvironment, prices: PriceTable = PRICES, **options: Any
) -> CostModel:
    """Args:
        experiment: Fitted.
        options: Of `CostModel`.

    Raises:
        ExperimentError: The learner's instance type has no price.
    """
    spaces = environment.spaces
    return CostModel(
        experiment.actor, experiment.learner, prices, cache_kind=experiment.cache.kind,
        round_deadline_s=experiment.fleet.round_deadline_s, traffic_bytes_max=(
        _fragment_bytes_max(spaces, experiment.actor.fragment_steps) + _weights_bytes(spaces, experiment.network.kind)
        + 2 * EPISODE_BYTES_MAX + 4096), **options)


def check_sizes(experiment: Experiment, environment: ActorEnvironment) -> None:
    """Args:
        experiment: Fitted.

    Raises:
        ExperimentError: A message would be larger than any may be.
    """
    spaces, steps = environment.spaces, experiment.actor.fragment_steps
    weights_bytes = _weights_bytes(spaces, experiment.network.kind)
    if weights_bytes > MESSAGE_BYTES_MAX:
        raise ExperimentError(
            f"environment.id = {experiment.environment.id!r}: a network for its observations of "
            f"{spaces.observation_size:,} numbers takes {weights_bytes:,} bytes; allowed: up to {MESSAGE_BYTES_MAX:,}. "
            "A wrapper may make its observations smaller")
    step_bytes = math.prod(spaces.frame_shape) if spaces.is_pixels else 4 * spaces.observation_size
    if steps * step_bytes > MESSAGE_BYTES_MAX:
        raise ExperimentError(
            f"actor.fragment_steps = {steps}: a fragment of {experiment.environment.id} takes {steps * step_bytes:,} "
            f"bytes and more; allowed: 1 to {MESSAGE_BYTES_MAX // step_bytes}")


def _fragment_bytes_max(spaces: Spaces, steps: int) -> int:
    """Every step bootstrapped and ending an episode, and no frame deflated."""
    action = 8 if spaces.is_discrete else 4 * spaces.action_size
    observation = 4 * spaces.frame_stack if spaces.is_pixels else 4 * spaces.observation_size
    step = 2 * observation + action + 4 + 8 + 1 + 1 + 8 + 24
    frames = (2 * steps + spaces.frame_stack) * math.prod(spaces.frame_shape) if spaces.is_pixels else 0
    # What cannot be deflated grows by a few bytes in each 16 KiB.
    return steps * step + frames + frames // 1000


def _weights_bytes(spaces: Spaces, network: str) -> int:
    """Log σ and the observations' moments included."""
    parameters = sum(math.prod(shape) for shape in parameter_shapes(spaces, network).values())
    moments = 0 if spaces.is_pixels else 2 * spaces.observation_size
    return 4 * (parameters + spaces.action_size + moments)


def _cache(experiment: Experiment, url: str, run_id: str, **options: Any) -> TrajectoryCache:
    return TrajectoryCache(url, run_id, ttl_s=cache_ttl_s(experiment), bytes_max=experiment.cache.memory_mib * 2**20,
                           **options)


def _own_credentials() -> dict[str, str | None]:
    return {"username": os.environ.get("CACHE_USERNAME"), "password": os.environ.get("CACHE_PASSWORD")}


def _credentials_of_actors(url: str) -> dict[str, str]:
    """Variables for the actors: what the URL says, or else CACHE_USERNAME and CACHE_PASSWORD."""
    _, username, password = split_credentials(url)
    found = {"ACTOR_CACHE_USERNAME": username or os.environ.get("CACHE_USERNAME"),
             "ACTOR_CACHE_PASSWORD": password or os.environ.get("CACHE_PASSWORD")}
    return {name: value for name, value in found.items() if value}


MakePlace = Callable[[Experiment, Signals], Place]
