"""The learner's side of a fleet, for tests: starts actors and collects their results."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lambda_actor import wire
from lambda_actor.cache import TrajectoryCache
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.money.work import Outcome
from tests.environments import policy_arrays
from tests.fleet_environments import ACTION_SIZE, DIRECTORY_VARIABLE, OBSERVATION_SIZE
from tests.helpers import PATIENCE_S, wait_for

STEPS = 16
ENDLESS_STEPS = 1_000_000
MODULE = "tests.fleet_environments"
GENEROUS_S = float(PATIENCE_S)
MakeFleet = Callable[[int, float], Fleet]


def weights(observation_size: int = OBSERVATION_SIZE, action_size: int = ACTION_SIZE) -> bytes:
    return wire.encode(
        wire.Kind.WEIGHTS,
        policy_arrays(
            observation_size, action_size, policy_version=1, gain=0.5, log_std=0.0, seed=7
        ),
    )


def outcomes_of(fleet: Fleet, ids: Sequence[str]) -> list[Outcome]:
    """Waits for the outcomes of exactly these invocations, each once; returns them in this order."""
    found: dict[str, Outcome] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < len(ids):
        assert time.monotonic() < deadline_s, f"waited in vain; there is only {found}"
        for outcome in fleet.wait(1.0):
            assert outcome.invocation_id in set(ids) - found.keys(), f"{outcome} came unasked"
            found[outcome.invocation_id] = outcome
    return [found[one] for one in ids]


class Actors:
    """The learner's side: starts actors on a fleet and collects their results."""

    def __init__(self, fleet: Fleet, server_url: str, policy: bytes | None = None) -> None:
        self.fleet, self._url, self.run_id = fleet, server_url, uuid.uuid4().hex
        self.cache = TrajectoryCache(server_url, self.run_id)
        self.cache.publish_weights(1, policy or weights())
        self._count = 0

    def event(self, environment: str, index: int, **changed: Any) -> dict[str, Any]:
        is_ours = not set(environment) & set(":-")
        return {
            "run_id": self.run_id,
            "invocation_id": f"i{index}",
            "cache_url": self._url,
            "cache_credential": "",
            "cache_ttl_s": 600,
            "truncate_at_fragment": False,
            "fragment_steps": STEPS,
            "policy_version": 1,
            "environment_id": f"{MODULE}:{environment}" if is_ours else environment,
            "preprocessing": "auto",
            "seed": 5,
            "round_index": 1,
            "slot": index,
            "episode_id": "",
            **changed,
        }

    def start(self, *environments: str, **changed: Any) -> list[str]:
        """Starts one actor in each environment; returns their ids."""
        events = [
            self.event(environment, index, **changed)
            for index, environment in enumerate(environments, self._count)
        ]
        self._count += len(events)
        ids = [event["invocation_id"] for event in events]
        self.cache.expect(ids)
        self.fleet.start(list(map(Invocation, ids, events)))
        return ids

    def run(self, *environments: str, **changed: Any) -> list[Outcome]:
        return outcomes_of(self.fleet, self.start(*environments, **changed))

    def start_endless(self, count: int) -> list[str]:
        """Starts actors that roll out until they are given up; returns once they are in the middle of a rollout."""
        before = marks("napping")
        ids = self.start(*["napping"] * count, fragment_steps=ENDLESS_STEPS)
        wait_for(
            lambda: len(marks("napping") - before) == count,
            "actors in the middle of their rollouts",
        )
        return ids

    def give_up(self, ids: Iterable[str]) -> None:
        """Closes the actors' doors, then tells the fleet, as a round does."""
        for one in ids:
            self.cache.take(one)
        self.fleet.abandon(list(ids))

    def trajectories(self) -> dict[str, bytes]:
        """Takes new trajectories, by their ids."""
        taken = {one: self.cache.take(one) for one in (f"i{index}" for index in range(self._count))}
        return {one: found for one, found in taken.items() if found is not None}

    def close(self) -> None:
        self.cache.remove_run()
        self.cache.close()


@contextmanager
def actors_on(server_url: str) -> Iterator[Callable[..., Actors]]:
    """Returns a function that makes the actors of fleets; cleans up the server afterwards."""
    made: list[Actors] = []

    def make(fleet: Fleet, policy: bytes | None = None) -> Actors:
        made.append(Actors(fleet, server_url, policy))
        return made[-1]

    yield make
    for actors in made:
        actors.close()


def marks(name: str) -> set[str]:
    return {path.name for path in Path(os.environ[DIRECTORY_VARIABLE]).glob(f"{name}-*")}


@dataclass(frozen=True)
class Kind:
    """A kind of fleet.

    Attributes:
        fleets: Given a folder, makes fleets from a number of concurrent actors and a time limit in seconds.
        is_metered: Whether outcomes report the platform's bill.
        words: By environment, words in its actor's error.
        limit_s: Time limit of one that hangs.
    """

    fleets: Callable[[Path], AbstractContextManager[MakeFleet]]
    is_metered: bool
    words: Mapping[str, str]
    limit_s: float = 1.0

    def init_billed_s(self, outcome: Outcome) -> float:
        """Returns the part of the outcome's bill that is start-up."""
        return outcome.init_s if self.is_metered else 0.0
