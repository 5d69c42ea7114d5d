"""What resolving fills in, what makes runs the same run, and what is written of an experiment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.spaces import Spaces
from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.instance_types import CPU_TYPES, GPU_TYPES
from runtime.experiment.learner import UPDATERS
from runtime.experiment.loading import experiment_from_tree, load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment, leaves
from runtime.experiment.section import OR_NULL
from tests.experiment.trees import FIELDS, LEAVES, MINIMAL, deciders, tree_of, values_of
from tests.helpers import ROOT

SECRET = "tooth-brush"


def made(**values: Any) -> Experiment:
    """Returns an experiment; ``__`` in a name stands for a dot."""
    tree = tree_of({name.replace("__", "."): value for name, value in values.items()})
    return experiment_from_tree(tree, source="x.yaml")


def fitted(**values: Any) -> ResolvedExperiment:
    return made(**values).resolved().fitted(Spaces((11,), action_size=3), preprocessing="none")


def test_defaults_are_a_cheap_run_and_resolving_is_idempotent() -> None:
    experiment = made(actor__timeout_s=33)
    resolved, deployed = experiment.resolved(), experiment.resolved(is_deployed=True)
    scaler = resolved.scaler
    assert [scaler.kind, scaler.most_actors, scaler.smallest_round] == ["fixed", 8, 8]
    assert (resolved.actor.provisioned, experiment.learner.market) == (0, "on_demand")
    assert [one.fleet.kind for one in (resolved, deployed)] == ["local", "lambda"]
    assert (resolved.fleet.round_deadline_s, resolved.algorithm.staleness_max) == (66, 32)
    asynchronous = made(algorithm__kind="impact", scaler__kind="nitro").resolved().algorithm
    assert (asynchronous.rounds, asynchronous.staleness_max) == ("asynchronous", 256)
    assert resolved.resolved() == resolved
    assert Experiment.model_validate(resolved.model_dump()).resolved() == resolved
    given = made(fleet__processes=3, fleet__round_deadline_s=100).resolved().fleet
    assert (given.processes, given.round_deadline_s) == (3, 100)


@pytest.mark.parametrize(
    ("values", "types"),
    [
        ({"environment__id": "my_package.envs:make", "network__kind": "conv"}, GPU_TYPES),
        ({"environment__id": "QbertNoFrameskip-v4"}, GPU_TYPES),
        ({"environment__id": "ALE/Qbert-v5", "network__kind": "mlp"}, CPU_TYPES),
        ({"learner__instance_types": ["g6.xlarge"]}, ("g6.xlarge",)),
    ],
)
def test_only_policies_with_convolutions_get_a_gpu(
    values: dict[str, Any], types: tuple[str, ...]
) -> None:
    assert made(**values).resolved().learner.instance_types == types


@pytest.mark.parametrize(
    ("values", "is_deployed", "vector"),
    [
        ({"actors_fixed": 5, "processes": 2}, False, 3),
        ({"actors_fixed": 2, "processes": 4}, False, 1),
        ({"actors_fixed": 200, "processes": 2}, False, 16),
        ({"actors_fixed": 4, "fleet__kind": "local"}, True, 2),
        ({"actors_fixed": 4}, True, 1),
        ({"actors_fixed": 4, "processes": 2, "algorithm__kind": "impact"}, False, 1),
    ],
    ids=str,
)
def test_environments_in_lock_step_are_spread_over_the_processes(
    values: dict[str, Any], is_deployed: bool, vector: int
) -> None:
    long = {"actors_fixed": "scaler__actors_fixed", "processes": "fleet__processes"}
    experiment = made(**{long.get(name, name): value for name, value in values.items()})
    assert experiment.resolved(is_deployed=is_deployed).environment.vector == vector


@pytest.mark.parametrize("kind", UPDATERS.settings)
def test_only_the_learners_machine_decides_more_than_resolving(kind: str) -> None:
    values = dict(leaves(fitted(learner__kind=kind).model_dump()))
    settled = {"learner.device", "learner.backend", "learner.reduction"}
    assert {path for path, value in values.items() if value == "auto"} <= settled
    filled = [path for path, info in FIELDS.items() if OR_NULL in info.metadata]
    assert len(filled) == 5 and not [path for path in filled if values[path] is None]


# Shipped files


@pytest.mark.parametrize(
    "path",
    sorted(path for path in ROOT.glob("experiments/**/*.yaml") if path.parent.name != "bases"),
    ids=lambda path: path.stem,
)
def test_shipped_experiments_load_and_the_papers_have_its_table_1(path: Path) -> None:
    experiment = load_experiment(path).resolved()
    name = experiment.environment.id.rpartition(":")[2].lower().replace("-", "")
    assert path.stem == "nitro" or name.startswith(path.stem.split("-")[0].replace("_", ""))
    if path.parent.name != "paper":
        return
    algorithm: Any = experiment.algorithm
    game, _, kind = path.stem.partition("-")
    assert algorithm.kind == ("ppo" if kind == "minionsrl" else kind)
    assert experiment.scaler.kind == ("fixed" if kind == "minionsrl" else "nitro")
    is_game = game in ("space_invaders", "qbert", "gravitar")
    whole_round = experiment.scaler.actors_max * experiment.actor.fragment_steps
    minibatch_steps = {"ppo": whole_round, "impact": 256 if is_game else 4096, "minionsrl": 256}
    assert algorithm.minibatch_steps == minibatch_steps[kind]
    names = (
        "learning_rate discount clip kl_coefficient kl_target entropy_coefficient value_coefficient"
    )
    ppo, impact = [5e-5, 0.99, 0.3, 0.2, 0.01, 0, 1], [5e-4, 0.99, 0.4, 1, 0.01, 0.01, 1]
    table = {"ppo": ppo, "impact": impact, "minionsrl": ppo}
    assert [getattr(algorithm, name) for name in names.split()] == table[kind]


# A run's identity

CHANGEABLE_LEAVES = set(
    "budget.usd budget.lifetime_hours stop.max_rounds stop.max_steps stop.target_return fleet.kind fleet.processes "
    "fleet.round_deadline_s cache.kind cache.url learner.update_timeout_s learner.instance_types learner.market "
    "learner.device learner.kind learner.backend learner.environments learner.function_memory_mib "
    "learner.function_timeout_s actor.provisioned fleet.address fleet.cpus_per_actor fleet.nodes "
    "fleet.node_usd_per_hour".split()
)
_ENDS = {"stop.max_rounds": 77, "stop.max_steps": 7777}
_BOTH_ROUNDS = {"algorithm.kind": "impact", "algorithm.rounds": "synchronous"}


def identified(path: str, **leaf: Any) -> Experiment:
    """Returns an experiment with an end in which the key is allowed, with both kinds of rounds if possible."""
    return experiment_from_tree(
        tree_of(_BOTH_ROUNDS | _ENDS | deciders(path) | leaf), source="x.yaml"
    )


@pytest.mark.parametrize("path", LEAVES)
def test_a_run_is_the_same_run_exactly_where_only_what_is_changeable_differs(path: str) -> None:
    base = identified(path)
    # A run may continue with a learner function.
    for value in ("function", *values_of(path)):
        with suppress(ExperimentError):
            changed = identified(path, **{path: value})
            if changed.resolved() != base.resolved():
                break
    else:
        pytest.fail("no other value")
    for one, other in ((base, changed), (base.resolved(), changed.resolved())):
        assert (one.identity == other.identity) == (path in CHANGEABLE_LEAVES)


# What is written


@settings(max_examples=25)
@given(data=st.data())
def test_the_resolved_tree_survives_its_yaml(tmp_path: Path, data: st.DataObject) -> None:
    paths = data.draw(st.lists(st.sampled_from(LEAVES), max_size=9, unique=True))
    values = {
        path: data.draw(st.sampled_from([*values_of(path), f"{path} text"]))
        for path in paths
        if path != "cache.url"
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml_text.dump(tree_of(values)))
    try:
        resolved = load_experiment(path, is_of_run=True).resolved()
    except ExperimentError:
        return
    path.write_text(resolved.to_yaml())
    again = load_experiment(path).resolved()
    assert again == resolved and again.identity == resolved.identity


def test_what_was_given_is_told_from_defaults_and_from_what_is_filled_in() -> None:
    experiment = fitted(
        algorithm__kind="ppo",
        algorithm__epochs=3,
        algorithm__discount=0.99,
        cache__url=f"redis://me:{SECRET}@host",
        learner__instance_types=["c7i.xlarge"],
        seed=0,
    )
    assert yaml.safe_load(experiment.given_yaml()) == {
        **MINIMAL,
        "algorithm": {"kind": "ppo", "epochs": 3},
        "cache": {"url": "redis://me:***@host"},
        "learner": {"kind": "instance", "instance_types": ["c7i.xlarge"]},
    }


@pytest.mark.parametrize(
    "url",
    # redis-py documents both forms.
    [f"redis://user:{SECRET}@[::1]:6379", f"unix:///run/cache.sock?db=0&password={SECRET}"],
)
def test_a_password_is_not_in_the_yaml(url: str) -> None:
    text = made(cache__url=url).resolved().to_yaml()
    assert SECRET not in text and yaml.safe_load(text)["cache"]["url"]
