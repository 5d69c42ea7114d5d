"""Fleets of the kind that a file or parameter names, and the learner's side of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from runtime.fleet.interfaces import Fleet
from tests.fleet.fleet_actors import GENEROUS_S, Actors, Kind, actors_on
from tests.fleet_environments import DIRECTORY_VARIABLE


@pytest.fixture(scope="module")
def fleet_factory(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Fleet]]:
    """Returns a function that makes fleets of ``processes`` actors at once, each ended after ``timeout_s``."""
    made: list[Fleet] = []
    os.environ[DIRECTORY_VARIABLE] = str(tmp_path_factory.mktemp("marks"))
    with kind.fleets(tmp_path_factory.mktemp("fleet")) as make_fleet:

        def make(processes: int = 2, timeout_s: float = GENEROUS_S) -> Fleet:
            made.append(make_fleet(processes, timeout_s))
            return made[-1]

        yield make
        for fleet in made:
            fleet.close()
    del os.environ[DIRECTORY_VARIABLE]


@pytest.fixture(scope="module")
def shared_fleet(fleet_factory) -> Fleet:
    """One fleet of two actors, for all tests that leave it usable."""
    return fleet_factory(2)


@pytest.fixture
def actors(shared_fleet: Fleet, server_url: str) -> Iterator[Actors]:
    actors = Actors(shared_fleet, server_url)
    yield actors
    actors.close()


@pytest.fixture
def actors_of(server_url: str) -> Iterator[Callable[..., Actors]]:
    with actors_on(server_url) as make:
        yield make
