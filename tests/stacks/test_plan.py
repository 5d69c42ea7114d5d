"""Deployable experiments and their names. Each refusal is one clear line, before anything is synthesized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.money.prices import PRICES
from stacks.plan import Plan
from tests.helpers import ROOT
from tests.stacks.conftest import experiment_text


def plan(
    folder: Path, *, name: str = "walker", context: dict[str, Any] | None = None, **changes: Any
) -> Plan:
    path = folder / f"{name}.yaml"
    path.write_text(experiment_text(**changes))
    return Plan.from_context({"experiment": str(path), **(context or {})}.get)


def minions(scheduler: str) -> dict[str, Any]:
    return {
        "scaler": {"kind": "minions", "scheduler": scheduler},
        "detector": {},
        "stop__target_return": 100.0,
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cache__url": "rediss://u:secret@host"}, "cache.url"),
        ({"environment__id": "${Token[TOKEN.12]}"}, "environment.id"),
        ({"environment__id": "a\nb"}, "environment.id"),
        (
            {"learner__instance_types": ["c7g.4xlarge", "c7i.4xlarge"]},
            "= c7g.4xlarge, c7i.4xlarge mixes",
        ),
        (
            {"learner__instance_types": ["c7i.4xlarge", "g5.xlarge"]},
            "= c7i.4xlarge, g5.xlarge mixes",
        ),
        (
            {"learner__instance_types": ["c7i-flex.large", "t3.small"]},
            "= c7i-flex.large, t3.small mixes",
        ),
        ({"learner__instance_types": ["g5g.xlarge"]}, "no machine image for GPUs of arm64"),
        (minions("my/own.safetensors"), "'my/own.safetensors' is a file of this machine"),
        (minions("nobody"), "nobody.safetensors' cannot be read"),
    ],
)
def test_experiments_that_only_a_deployment_refuses(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ExperimentError) as refusal:
        plan(tmp_path, **changes)
    assert named in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_shipped_experiments_may_be_deployed(path: Path) -> None:
    assert Plan.from_context({"experiment": str(path)}.get).name == path.stem.replace("_", "-")


@pytest.mark.parametrize(
    ("context", "named"),
    [
        ({"experiment": None}, "which experiment?"),
        ({"experiment": "no/such.yaml"}, "no/such.yaml: cannot be read"),
        ({"run": "No Spaces"}, "run = 'No Spaces'"),
        ({"actor_concurrency": "many"}, "actor_concurrency = 'many'"),
        ({"actor_concurrency": -1}, "actor_concurrency = -1"),
    ],
)
def test_contexts_that_are_refused(tmp_path: Path, context: dict[str, Any], named: str) -> None:
    with pytest.raises(ExperimentError, match="^" + named.replace("?", r"\?")):
        plan(tmp_path, context=context)


def test_a_file_whose_name_cannot_name_a_stack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="cannot name a stack"):
        plan(tmp_path, name="1st")


def test_without_a_name_the_run_follows_from_what_it_computes(tmp_path: Path) -> None:
    first = plan(tmp_path)
    assert (
        first.run
        == load_experiment(tmp_path / "walker.yaml").resolved(is_deployed=True).identity[:8]
    )
    assert plan(tmp_path, budget__usd=2.0, stop__max_rounds=9).run == first.run
    assert plan(tmp_path, seed=4).run != first.run
    assert plan(tmp_path, context={"run": "mine"}).run == "mine"


@pytest.mark.parametrize(
    "region", ["us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "us-west-1"]
)
@pytest.mark.parametrize("name", ["hopper", "nitro"])
def test_the_first_files_may_be_deployed_in_each_region(
    monkeypatch: pytest.MonkeyPatch, name: str, region: str
) -> None:
    monkeypatch.setenv("CDK_DEFAULT_REGION", region)
    made = Plan.from_context({"experiment": str(ROOT / "experiments" / f"{name}.yaml")}.get)
    dearer = 1 if region == "us-east-1" else 2
    assert made.prices.region == made.needs.region == region, "the guard refuses another's prices"
    assert made.prices.request_usd == PRICES.request_usd * dearer
    assert made.estimate.tail_usd < made.experiment.budget.usd / 3


def test_without_a_region_prices_are_those_of_us_east_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("", None):
        monkeypatch.setenv(
            "CDK_DEFAULT_REGION", value
        ) if value is not None else monkeypatch.delenv("CDK_DEFAULT_REGION")
        assert plan(tmp_path).prices == PRICES


def test_elasticache_names_are_short_lower_case_and_still_differ(tmp_path: Path) -> None:
    stems = ("a" * 34, "a" * 40, "a" * 39 + "b", "a" * 25 + "-" + "b" * 14)
    names = [
        name
        for stem in stems
        for made in [plan(tmp_path, name=stem)]
        for name in (made.cache_name, made.actor_user)
    ]
    assert names[0] == "nitro-" + "a" * 34
    assert len(set(names)) == 2 * len(stems)
    for name in names:
        assert len(name) <= 40
        assert name == name.lower()
        assert "--" not in name


@pytest.mark.parametrize(
    ("left", "guard", "reserved", "provisioned"),
    [
        (None, None, None, 6),
        (1000, 2, 6, 6),
        (108, 2, 6, 6),
        (107, 2, None, 5),
        (102, 2, None, 0),
        (101, None, None, 1),
        (10, None, None, 0),
        (0, None, None, 0),
    ],
)
def test_a_hundred_executions_stay_unreserved(
    tmp_path: Path, left: int | None, guard: int | None, reserved: int | None, provisioned: int
) -> None:
    made = plan(tmp_path, context={"actor_concurrency": left}, actor__provisioned=6)
    assert (made.reserved_for_guard, made.reserved_actors, made.provisioned_actors) == (
        guard,
        reserved,
        provisioned,
    )
    if left is not None:
        assert left - (guard or 0) - (reserved or 0) >= 100 or guard is reserved is None


@pytest.mark.parametrize(
    ("changes", "left", "needed"),
    [
        ({"actor__provisioned": 3}, None, ("1", "1", "3")),
        ({"actor__provisioned": 3}, 1000, ("1", "1", "6")),
        ({"actor__provisioned": 3}, 10, ("1", "1", "0")),
        (
            {"learner__kind": "function", "cache__kind": "none", "actor__timeout_s": 30},
            None,
            ("1", "3", "0"),
        ),
        (
            {"learner__kind": "function", "cache__kind": "none", "fleet__round_deadline_s": 400},
            None,
            ("6", "3", "0"),
        ),
        (
            {"learner__kind": "function", "cache__kind": "none", "fleet__round_deadline_s": 250},
            None,
            ("3", "3", "0"),
        ),
        ({"fleet__kind": "local", "cache__kind": "none"}, None, ("0", "1", "0")),
    ],
)
def test_the_guard_is_told_what_must_run_at_once(
    tmp_path: Path, changes: dict[str, Any], left: int | None, needed: tuple[str, str, str]
) -> None:
    needs = plan(tmp_path, context={"actor_concurrency": left}, **changes).needs
    assert (needs.actors_min, needs.others, needs.held) == needed


@pytest.mark.parametrize(
    ("changes", "processes", "waves"),
    [
        ({"instance_types": ["c7i.2xlarge", "m7i.xlarge"]}, 4, 2),
        ({"instance_types": ["c5.9xlarge"]}, 36, 1),
        ({}, 2, 3),
    ],
)
def test_on_the_learner_as_many_actors_run_at_once_as_it_has_cpus(
    tmp_path: Path, changes: dict[str, Any], processes: int, waves: int
) -> None:
    made = plan(
        tmp_path,
        fleet__kind="local",
        fleet__processes=None,
        cache__kind="none",
        actor__provisioned=4,
        **{f"learner__{key}": value for key, value in changes.items()},
    )
    assert (made.has_function, made.concurrency, made.waves, made.provisioned_actors) == (
        False,
        processes,
        waves,
        0,
    )
    assert made.estimate.burn_usd_per_hour == made.estimate.learner_usd_per_hour
    assert (
        made.start.expected_s
        < plan(tmp_path, cache__kind="none", actor__provisioned=0).start.expected_s
    )


def test_a_package_is_looked_for_beside_the_experiment_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_env").mkdir()
    monkeypatch.chdir("/")
    assert plan(tmp_path, environment__package="./my_env").package == str(tmp_path / "my_env")
    assert plan(tmp_path, environment__package="my-envs==1.2.0").package == "my-envs==1.2.0"
    assert plan(tmp_path).package is None


def test_another_code_of_the_package_is_another_run(tmp_path: Path) -> None:
    folder = tmp_path / "my_env"
    folder.mkdir()
    (folder / "envs.py").write_text("REWARD = 1")
    runs = [plan(tmp_path, environment__package="./my_env").run]
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "envs.pyc").write_bytes(b"compiled")
    runs.append(plan(tmp_path, environment__package="./my_env").run)
    (folder / "envs.py").write_text("REWARD = 2")
    runs.append(plan(tmp_path, environment__package="./my_env").run)
    assert runs[0] == runs[1] != runs[2]
