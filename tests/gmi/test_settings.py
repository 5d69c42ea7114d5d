"""The keys of instances: their resolved values, refusals, and the layout of a resumed run."""

from __future__ import annotations

import importlib.metadata
from contextlib import nullcontext
from typing import Any

import pytest

from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError, MissingExtraError
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import unchangeable
from runtime.training.backends.this_machine import ThisMachine

BASE: dict[str, Any] = {
    "environment": {"id": "Hopper-v5"},
    "budget": {"usd": 1.0},
    "scaler": {"actors_fixed": 12},
}


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.machine.cores", lambda: 4)


def made(gmi: dict[str, Any] | None = None, **changes: Any) -> Any:
    return experiment_from_tree(
        {**BASE, "learner": {"kind": "gmi", **(gmi or {})}, **changes},
        source="x.yaml",
    )


def fitted(gmi: dict[str, Any] | None = None, **changes: Any) -> ResolvedExperiment:
    return (
        made(gmi, **changes).resolved().fitted(Spaces((11,), action_size=3), preprocessing="none")
    )


@pytest.mark.parametrize(
    ("gmi", "actors", "instances", "environments"),
    [
        ({}, 12, 4, 3),
        ({}, 2, 2, 1),
        ({"instances": "auto"}, 100, 4, 16),
        ({"instances": 3, "environments": 7}, 12, 3, 7),
    ],
)
def test_an_open_layout_shares_the_actors_out(
    gmi: dict[str, Any], actors: int, instances: int, environments: int
) -> None:
    experiment = made(gmi, scaler={"actors_fixed": actors}).resolved()
    assert (experiment.learner.instances, experiment.learner.environments) == (
        instances,
        environments,
    )
    assert (experiment.environment.vector, experiment.learner.threads) == (environments, 1)
    assert (experiment.fleet.kind, experiment.is_on_learner, experiment.cache.kind) == (
        "local",
        True,
        "none",
    )


def test_a_deployment_has_an_instance_for_each_vcpu_of_the_smallest_type() -> None:
    experiment = experiment_from_tree(
        {**BASE, "learner": {"kind": "gmi", "instance_types": ["c7i.4xlarge", "c7i.2xlarge"]}},
        source="x.yaml",
    ).resolved(is_deployed=True)
    assert experiment.learner.instances == 8
    assert (experiment.fleet.kind, experiment.cache.kind) == ("local", "none")


WARP: dict[str, Any] = {
    "environment": {"id": "Ant-v5", "backend": "warp"},
    "learner": {"kind": "gmi"},
}


def test_all_of_an_instances_share_is_simulated_at_once() -> None:
    tree = {**BASE, **WARP, "scaler": {"actors_fixed": 4096}}
    experiment = experiment_from_tree(tree, source="x.yaml").resolved()
    assert (experiment.learner.instances, experiment.learner.environments) == (1, 4096)
    assert experiment.steps_together == 4096 * 256
    with pytest.raises(
        ExperimentError,
        match="environment.backend = warp is for this machine; allowed in a deployment: gym",
    ):
        experiment_from_tree(tree, source="x.yaml").resolved(is_deployed=True)


def test_the_simulator_is_part_of_what_a_run_is() -> None:
    tree = {**BASE, "environment": {"id": "Ant-v5"}, "learner": {"kind": "gmi"}}
    simulated = unchangeable(experiment_from_tree({**tree, **WARP}, source="x.yaml"))
    own = unchangeable(experiment_from_tree(tree, source="x.yaml"))
    assert simulated == own | {"environment.backend": "warp"}


@pytest.mark.parametrize(
    ("version", "error", "told"),
    [
        (
            None,
            MissingExtraError,
            r"environment.backend = 'warp' needs MuJoCo Warp: pip install 'nitro-rl\[warp\]'",
        ),
        (
            "3.10.0",
            ExperimentError,
            r"mujoco-warp 3.10.0 is installed; allowed: 4.x, as pip install 'nitro-rl\[warp\]'",
        ),
        ("4.1.0", None, ""),
    ],
)
def test_without_the_package_a_run_does_not_begin(
    version: str | None, error: type[Exception] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name == "mujoco-warp" and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version or ""

    monkeypatch.setattr(importlib.metadata, "version", installed)
    experiment = experiment_from_tree({**BASE, **WARP}, source="x.yaml").resolved()
    with nullcontext() if error is None else pytest.raises(error, match=told):
        ThisMachine(experiment)


def layout_of(experiment: ResolvedExperiment) -> tuple[int, int, int]:
    gmi: Any = experiment.learner
    return gmi.instances, gmi.environments, experiment.environment.vector


def test_a_run_goes_on_with_its_own_layout() -> None:
    began = fitted({"instances": 3})

    def continued(gmi: dict[str, Any] | None = None) -> tuple[int, int, int]:
        experiment = fitted(gmi)
        learner: Any = experiment.learner
        return layout_of(learner.continued(experiment, began))

    assert continued() == (3, 4, 4)
    assert continued({"environments": 2}) == (3, 2, 2)
    assert continued({"instances": 2}) == (2, 4, 4), "so the identity check refuses it"
