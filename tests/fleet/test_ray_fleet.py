"""The fleet contract on a Ray cluster, which this file starts once on this machine, and tests of Ray alone."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet
from runtime.fleet.ray_cluster import RayFleet
from tests.fleet.fleet_actors import Kind, MakeFleet
from tests.fleet.test_fleets import (  # noqa: F401  # The contract, with `kind` of this file.
    test_a_hanging_actor_is_ended_after_its_time,
    test_an_actor_that_raises_or_dies_is_named_and_costs_its_own_trajectory_only,
    test_given_up_actors_end_whether_they_run_or_wait,
    test_many_more_actors_than_fit_at_once_all_come_back_once,
)
from tests.helpers import SMALL_EXPERIMENT, overrides, rounds, summary, train

CPUS = 2
SAME = ("env_steps_total", "episode_return_mean", "policy_loss", "value_loss", "entropy", "kl")

if not os.environ.get("CI"):
    pytest.importorskip("ray", reason="needs the extra ray")


def setup(timeout_s: float) -> FleetSetup:
    return FleetSetup(
        concurrency=CPUS, timeout_s=timeout_s, memory_mib=1769, log_path=Path("unused")
    )


@contextmanager
def ray_fleets(folder: Path) -> Iterator[MakeFleet]:
    # Unix sockets need short names.
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with mock.patch.dict(os.environ, RAY_TMPDIR=place, RAY_AUTH_MODE="disabled"):
        cluster = RayFleet(setup(60.0))
        yield lambda processes, timeout_s: RayFleet(
            setup(timeout_s), cpus_per_task=CPUS / processes
        )
        cluster.close()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def kind() -> Kind:
    died = dict.fromkeys(("exiting", "killed", "segfaulting"), "worker")
    # The limit of a new worker includes its imports.
    return Kind(ray_fleets, False, died | {"hanging": "timed out after 4 s"}, limit_s=4.0)


def test_rounds_are_those_of_the_local_fleet_and_the_nodes_are_the_bill(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    file, rounds_of = tmp_path / "small.yaml", {}
    file.write_text(SMALL_EXPERIMENT)
    # One learner function without Stellaris' additions trains the same policy anywhere.
    on_ray = overrides(
        fleet__nodes=2,
        fleet__node_usd_per_hour=0.5,
        budget__usd=2.0,
        learner__update_timeout_s=1800,
        learner__function_timeout_s=600,
        learner__kind="stellaris",
        learner__learners=1,
        **{
            f"learner__{key}": "null"
            for key in ("staleness_decay", "learning_rate_root", "truncation")
        },
    )
    for kind in ("local", "ray"):
        done = train(
            file,
            tmp_path / kind,
            *overrides(
                fleet__kind=kind, cache__kind="none", stop__max_rounds=2, evaluation__every_rounds=0
            ),
            *(on_ray if kind == "ray" else ()),
        )
        assert done.returncode == 0, done.stderr
        rounds_of[kind] = rounds(tmp_path / kind)
    for row, expected in zip(rounds_of["ray"], rounds_of["local"], strict=True):
        assert row["gradients"] == 6
        assert {key: row[key] for key in SAME} == {key: expected[key] for key in SAME}
    last, found = rounds_of["ray"][-1], summary(tmp_path / "ray")
    assert {
        last[key] for key in ("actors_cost_usd", "provisioned_cost_usd", "infrastructure_cost_usd")
    } == {0.0}
    # By the clock, since joining the cluster: at least as long as the rounds took.
    assert last["spent_usd"] >= sum(row["round_s"] for row in rounds_of["ray"]) * 2 * 0.5 / 3600
    assert last["spent_usd"] <= found["spent_usd"] <= 1.0
    assert found["cost_basis"] == "metered"
