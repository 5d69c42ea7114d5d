"""The experiment file: every wrong one is refused with a helpful message, and a correct one is read unchanged."""

from __future__ import annotations

import re
import string
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.spaces import Spaces
from runtime.cli.explain import explained
from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.instance_types import CPU_TYPES, GPU_TYPES
from runtime.experiment.learner import UPDATERS
from runtime.experiment.loading import (
    experiment_from_tree,
    load_experiment,
)
from runtime.experiment.scaler import SCALERS
from runtime.experiment.schema import Experiment, leaves
from runtime.experiment.section import OR_NULL
from runtime.money.budget import Budget
from runtime.money.meter import Meter
from runtime.money.prices import PRICES
from tests.experiment.trees import FIELDS, MINIMAL, deciders
from tests.experiment.trees import tree_with as tree_with_all
from tests.helpers import cost_model

ROOT = Path(__file__).resolve().parents[2]
MINIMAL_YAML = "environment: {id: Hopper-v5}\nbudget: {usd: 1.0}\n"
SECRET = "tooth-brush-77"


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


SECTIONS = [path for path, info in FIELDS.items() if is_section(info.annotation)]
LEAVES = [path for path in FIELDS if path not in SECTIONS]


def types_and_bounds(annotation: Any, metadata: Any = ()) -> Iterator[tuple[Any, dict[str, float]]]:
    """Yields every type that a field may have, with its bounds. Reads the annotation differently from config.py."""
    if get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        yield from types_and_bounds(inner, [*metadata, *extra])
    elif get_origin(annotation) is types.UnionType or str(get_origin(annotation)) == "typing.Union":
        for argument in get_args(annotation):
            yield from types_and_bounds(argument, metadata)
    else:
        flat = [part for item in metadata for part in (getattr(item, "metadata", None) or [item])]
        yield (
            annotation,
            {
                name: getattr(part, name)
                for part in flat
                for name in ("ge", "gt", "le", "lt")
                if getattr(part, name, None) is not None
            },
        )


def kinds_of(path: str) -> list[tuple[Any, dict[str, float]]]:
    found = list(types_and_bounds(FIELDS[path].annotation, FIELDS[path].metadata))
    return [*found, (type(None), {})] if OR_NULL in FIELDS[path].metadata else found


def numeric(path: str) -> tuple[Any, dict[str, float]] | None:
    return next(((kind, bounds) for kind, bounds in kinds_of(path) if kind in (int, float)), None)


NUMBERS = [path for path in LEAVES if numeric(path)]
BOUNDED = [path for path in NUMBERS if numeric(path)[1]]


def tree_with(path: str, value: Any) -> dict[str, Any]:
    """Returns an experiment that reads the key and sets it to the value."""
    return tree_with_all(deciders(path) | {path: value})


def refusal(tree: Any) -> str:
    with pytest.raises(ExperimentError) as caught:
        experiment_from_tree(tree, source="x.yaml")
    return str(caught.value)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load_refusal(folder: Path, text: str | bytes, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(written(folder, text), overrides)
    return str(caught.value)


# Fields that exist


def test_the_two_required_keys_alone_train_with_eight_actors_and_keep_none_warm():
    experiment = experiment_from_tree(MINIMAL, source="x.yaml").resolved()
    scaler = experiment.scaler
    assert (scaler.kind, scaler.most_actors, scaler.smallest_round, scaler.mean_actors) == (
        "fixed",
        8,
        8,
        8,
    )
    assert (
        experiment.actor.provisioned == experiment.resolved(is_deployed=True).actor.provisioned == 0
    )
    meter = Meter(cost_model(experiment), Budget(experiment.budget.usd))
    assert meter.open_round(scaler.most_actors, smallest=1) == 8
    bill = meter.close_round(1.0)
    assert bill.provisioned_cost_usd == 0.0


def test_defaults_of_a_deployment():
    experiment = experiment_from_tree(MINIMAL, source="x.yaml")
    assert (experiment.fleet.kind, experiment.learner.market) == ("auto", "on_demand")
    assert experiment.learner.instance_types is None
    assert experiment.environment.package is None
    assert (experiment.cache.kind, experiment.budget.lifetime_hours) == ("redis", 24.0)


@pytest.mark.parametrize(
    ("sections", "types"),
    [
        ({"environment": {"id": "Hopper-v5"}}, CPU_TYPES),
        ({"environment": {"id": "my_package.envs:make"}}, CPU_TYPES),
        ({"environment": {"id": "my_package.envs:make"}, "network": {"kind": "conv"}}, GPU_TYPES),
        ({"environment": {"id": "ALE/Qbert-v5"}}, GPU_TYPES),
        ({"environment": {"id": "QbertNoFrameskip-v4"}}, GPU_TYPES),
        ({"environment": {"id": "ALE/Qbert-v5"}, "network": {"kind": "mlp"}}, CPU_TYPES),
        (
            {"environment": {"id": "Hopper-v5"}, "learner": {"instance_types": ["g6.xlarge"]}},
            ("g6.xlarge",),
        ),
    ],
)
def test_only_policies_with_convolutions_get_a_gpu(
    sections: dict[str, Any], types: tuple[str, ...]
):
    experiment = experiment_from_tree({**MINIMAL, **sections}, source="x.yaml")
    assert experiment.resolved().learner.instance_types == types
    assert set(types) <= PRICES.instance_hour_usd.keys()


@pytest.mark.parametrize(
    "path",
    sorted(path for path in ROOT.glob("experiments/**/*.yaml") if path.parent.name != "bases"),
    ids=lambda path: path.stem,
)
def test_shipped_experiments_load(path: Path):
    experiment = load_experiment(path).resolved()
    name = experiment.environment.id.rpartition(":")[2].lower().replace("-", "")
    assert path.stem == "nitro" or name.startswith(path.stem.split("-")[0].replace("_", ""))
    is_nitro = (
        "paper" in path.parts or path.stem.endswith("-nitro") or path.stem in ("hopper", "nitro")
    )
    assert experiment.scaler.kind == ("nitro" if is_nitro else "fixed")


@pytest.mark.parametrize(
    "environment", ["hopper", "humanoid", "walker2d", "space_invaders", "qbert", "gravitar"]
)
@pytest.mark.parametrize("kind", ["ppo", "impact"])
def test_the_papers_experiments_have_its_table_1(environment: str, kind: str):
    algorithm = load_experiment(ROOT / f"experiments/paper/{environment}-{kind}.yaml").algorithm
    settings = algorithm
    is_game = environment in ("space_invaders", "qbert", "gravitar")
    assert algorithm.kind == kind
    assert settings.minibatch_steps == (256 if is_game else 4096)
    assert (
        settings.learning_rate,
        settings.discount,
        settings.clip,
        settings.kl_coefficient,
        settings.kl_target,
        settings.entropy_coefficient,
        settings.value_coefficient,
    ) == (
        (5e-5, 0.99, 0.3, 0.2, 0.01, 0.0, 1.0)
        if kind == "ppo"
        else (5e-4, 0.99, 0.4, 1.0, 0.01, 0.01, 1.0)
    )


@pytest.mark.parametrize(
    ("text", "value"), [("5e-5", 5e-5), ("1E3", 1000.0), (".5e1", 5.0), ("+2e-0", 2.0), ("7", 7.0)]
)
def test_numbers_without_a_point_are_numbers(tmp_path: Path, text: str, value: float):
    experiment = load_experiment(
        written(tmp_path, MINIMAL_YAML + f"algorithm: {{learning_rate: {text}}}")
    )
    assert experiment.algorithm.learning_rate == value
    assert (
        load_experiment(
            written(tmp_path, MINIMAL_YAML), [f"algorithm.learning_rate={text}"]
        ).algorithm.learning_rate
        == value
    )


@pytest.mark.parametrize(
    ("text", "value"), [("1e6", 1_000_000), ("2.0", 2), ("1e12", 10**12), ("null", None)]
)
def test_whole_numbers_may_be_written_as_floats(tmp_path: Path, text: str, value: int | None):
    stop = load_experiment(written(tmp_path, MINIMAL_YAML + f"stop: {{max_rounds: {text}}}")).stop
    assert (stop.max_rounds, type(stop.max_rounds)) == (value, type(value))


@pytest.mark.parametrize(
    "wrapper", ["", "Wrapper", "a:b", "a..b", "a.b c", {"a.b": None, "a.c": None}, {}]
)
def test_a_wrapper_is_an_import_path(wrapper: Any):
    assert f"environment.wrappers = {wrapper!r} " in refusal(
        tree_with("environment.wrappers", [wrapper])
    )


# Refusals, field by field


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("kwargs", "{begin: 2026-11-23}", "= {'begin': datetime.date(2026, 11, 23)} is not"),
        ("kwargs", "{sizes: {1: 2}}", "= {'sizes': {1: 2}} is not allowed; allowed: a mapping of"),
        ("wrappers", "[3]", "= [3] is not allowed; allowed: a list of text or a mapping of"),
        ("wrappers", "[a.b, {c.d: {e: .nan}}]", "= ['a.b', {'c.d': {'e': nan}}] is not allowed"),
    ],
)
def test_what_no_environment_can_be_made_with_is_told_in_one_line(
    tmp_path: Path, key: str, text: str, told: str
):
    lines = load_refusal(tmp_path, MINIMAL_YAML, f"environment.{key}={text}").splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(f"  environment.{key} {told}")


@pytest.mark.parametrize("path", LEAVES)
def test_a_value_of_the_wrong_type_is_refused(path: str):
    kinds = {kind for kind, _ in kinds_of(path)}
    wrong: list[Any] = [["a", {"b": 1}], 1e400, object()]
    if path != "environment.kwargs":
        wrong += [{"a": 1}]
    if str not in kinds:
        wrong += ["neither-a-number-nor-a-choice", ""]
    if not kinds & {int, float}:
        wrong += [17, 2.5]
    if int in kinds:
        wrong += [2.5]
    if bool not in kinds:
        wrong += [True, False]
    if type(None) not in kinds:
        wrong += [None]
    for value in wrong:
        text = refusal(tree_with(path, value))
        assert path in text
        assert "allowed: " in text
        if not isinstance(value, list):
            assert ("null" if value is None else repr(value)) in text or str(value) in text, (
                f"{value!r} is not named in {text!r}"
            )
        for kind, bounds in kinds_of(path):
            if get_origin(kind) is Literal:
                assert all(choice in text for choice in get_args(kind))
            for bound in bounds.values():
                assert f"{bound:,}" in text


@pytest.mark.parametrize("path", BOUNDED)
def test_a_value_out_of_range_is_refused(path: str):
    kind, bounds = numeric(path)
    tiny = 1 if kind is int else 1e-9
    outside = [bounds[name] - tiny for name in ("ge",) if name in bounds]
    outside += [kind(bounds[name]) for name in ("gt", "lt") if name in bounds]
    outside += [
        bounds[name] + (tiny if kind is int else 1e-3) for name in ("le",) if name in bounds
    ]
    assert outside
    for value in outside:
        text = refusal(tree_with(path, value))
        assert f"{path} = {value!r} " in text
        for bound in bounds.values():
            assert f"{bound:,}" in text


@pytest.mark.parametrize("path", ["environment", "environment.id", "budget", "budget.usd"])
def test_what_has_no_default_must_be_given(path: str):
    tree = {name: dict(section) for name, section in MINIMAL.items()}
    section, _, key = path.partition(".")
    if key:
        del tree[section][key]
    else:
        del tree[section]
    required = {"environment": "environment.id", "budget": "budget.usd"}
    assert f" {required.get(path, path)} is missing: " in refusal(tree)


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("scaler.kind", "nitor", "nitro"),
        ("algorithm.kind", "imapct", "impact"),
        ("network.activation", "Tanh", "tanh"),
        ("algorithm.kind", "quantum", None),
        ("seed", "nitor", None),
    ],
)
def test_a_mistyped_value_of_a_closed_set_is_refused_with_the_nearest(
    path: str, value: str, meant: str | None
):
    section, _, key = path.rpartition(".")
    text = refusal({**MINIMAL, **({section: {key: value}} if section else {key: value})})
    assert f"{path} = {value!r} is not allowed; allowed: " in text
    assert re.findall(r"; did you mean (.*)\?", text) == ([meant] if meant else [])


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("sede", "seed"),
        ("enviroment", "environment"),
        ("scalar", "scaler"),
        ("environment.ids", "environment.id"),
        ("algorithm.epoch", "algorithm.epochs"),
        ("algorithm.learning_rte", "algorithm.learning_rate"),
        ("detector.lanczos_step", "detector.lanczos_steps"),
        ("scaler.actor_max", "scaler.actors_max"),
        ("actor.timeouts", "actor.timeout_s"),
        ("learner.instance_type", "learner.instance_types"),
        ("fleet.process", "fleet.processes"),
        ("budget.usdd", "budget.usd"),
        ("stop.max_round", "stop.max_rounds"),
        ("evaluation.episode", "evaluation.episodes"),
        # In no section.
        ("max_rounds", "stop.max_rounds"),
        # A key of the chosen algorithm.
        ("learning_rate", "algorithm.learning_rate"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(path: str, nearest: str):
    text = refusal(tree_with(path, 3))
    assert f"{path} is not a known key; did you mean {nearest}?" in text


def test_what_is_proposed_is_of_the_algorithm_that_is_chosen(tmp_path: Path):
    text = MINIMAL_YAML + "algorithm: {kind: impact}"
    assert "did you mean algorithm.learning_rate?" in load_refusal(
        tmp_path, text, "learning_rate=1e-4"
    )
    assert "did you mean algorithm.learning_rate?" in load_refusal(
        tmp_path, text, "learning_rat=1e-4", "algorithm.kind=impala"
    )


# Refusals, file by file


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL_YAML + "seed: 1\nseed: 2\n",
        MINIMAL_YAML + "stop: {max_rounds: 1, max_steps: 5, max_rounds: 1}\n",
        MINIMAL_YAML + "algorithm:\n  clip: 0.1\n  clip: 0.2\n",
    ],
    ids=["top", "flow", "nested"],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, text: str):
    assert "appears twice" in load_refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"# nothing but a comment\n",
        b"- a\n- list\n",
        b"just text",
        b"5",
        b"null",
        b"a: [1, 2",
        b"a: b: c",
        b"\tseed: 1",
        b"%YAML 9.9\n---\na: 1",
        b"--- {a: 1}\n--- {b: 2}\n",
        b"\x00\x01\x02",
        b"\xff\xfe\x00\xd8",
        bytes(range(256)),
        b"NTRO" + bytes(64),
        b"a: *nowhere",
        b"!!python/object:os.system x",
        b"? [1, 2]\n: 3\n",
        b"seed: 2001-13-45",
        b"{a: " * 5000,
        b"&a [*a]",
    ],
    ids=lambda text: repr(text[:24]),
)
def test_a_file_that_is_no_experiment_is_refused(tmp_path: Path, text: bytes):
    assert str(tmp_path / "x.yaml") in load_refusal(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ExperimentError, match="No such file"):
        load_experiment(tmp_path / "none.yaml")


def test_a_missing_file_is_refused_with_the_name_of_one_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "experiments").mkdir()
    for path in ("experiments/hopper.yaml", "mine.yaml"):
        (tmp_path / path).write_text("seed: 1")
    monkeypatch.chdir(tmp_path)
    for name, meant in (
        ("hopper", "experiments/hopper.yaml"),
        ("experiments/hoper.yaml", "experiments/hopper.yaml"),
        ("mine.yml", "mine.yaml"),
    ):
        with pytest.raises(
            ExperimentError, match=f"No such file or directory; did you mean {meant}\\?$"
        ):
            load_experiment(Path(name))


# --set


def test_set_overrides_and_adds(tmp_path: Path):
    experiment = load_experiment(
        written(tmp_path, MINIMAL_YAML + "seed: 1\nstop:\n"),
        [
            "seed=7",
            "algorithm.clip=0.3",
            "stop.max_rounds=4",
            "learner.instance_types=[g5.xlarge, g6.xlarge]",
            "environment.truncate_at_fragment=true",
            "seed=8",
            "actor.provisioned=3",
            "cache.url=redis://h:1/0?a=b",
        ],
    )
    assert experiment.seed == 8
    assert experiment.algorithm.clip == 0.3
    assert experiment.stop.max_rounds == 4
    assert experiment.learner.instance_types == ("g5.xlarge", "g6.xlarge")
    assert experiment.environment.truncate_at_fragment is True
    assert experiment.actor.provisioned == 3
    assert experiment.cache.url == "redis://h:1/0?a=b"


@pytest.mark.parametrize("override", ["", "seed", "seed:5", "=5", "environment.id"])
def test_set_without_key_or_value_is_refused(tmp_path: Path, override: str):
    assert "is not section.key=value" in load_refusal(tmp_path, MINIMAL_YAML, override)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["environment=5"], "environment = 5"),
        (["seed.deeper=5"], "seed = {'deeper': 5}"),
        (["environment.kwargs.a=5"], "environment.kwargs.a=5: is not section.key=value"),
        (["seed="], "seed = null"),
        (["sede=5"], "did you mean seed?"),
        (["algorithm.clp=5"], "did you mean algorithm.clip?"),
        ([".=5"], "not a known key"),
        (["stop..max_rounds=5"], "stop"),
        (["seed=[1"], "cannot be read"),
        (["seed={a: 1, a: 2}"], "appears twice"),
        (["budget.usd=free"], "budget.usd = 'free'"),
        (["extends=x.yaml"], "extends is allowed in a file only"),
        (["environment.id=''"], "environment.id = '' is not allowed; allowed: non-empty text"),
        (["network.hidden_sizes=[]"], "allowed: a non-empty list of"),
    ],
)
def test_set_is_checked_like_the_file(tmp_path: Path, overrides: list[str], words: str):
    assert words in load_refusal(tmp_path, MINIMAL_YAML, *overrides)


# Contradictions


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (
            {"scaler": {"kind": "nitro", "actors_min": 9, "actors_max": 8}},
            ["scaler.actors_min = 9", "scaler.actors_max = 8"],
        ),
        (
            {"actor": {"provisioned": 65}, "scaler": {"kind": "nitro"}},
            ["actor.provisioned = 65", "64"],
        ),
        ({"actor": {"provisioned": 9}}, ["actor.provisioned = 9", "8"]),
        (
            {"stop": {"max_steps": 255}},
            ["stop.max_steps = 255", "actor.fragment_steps = 256; allowed: 256 or more"],
        ),
        (
            {"fleet": {"round_deadline_s": 59}},
            ["fleet.round_deadline_s = 59", "actor.timeout_s = 60"],
        ),
        (
            {"stop": {"max_steps": 255}, "fleet": {"round_deadline_s": 59}},
            ["2 problems:", "  stop.max_steps = 255", "  fleet.round_deadline_s = 59"],
        ),
        (
            {"stop": {"target_return": 5.0}, "evaluation": {"every_rounds": 0}},
            ["stop.target_return = 5.0", "evaluation.every_rounds"],
        ),
        (
            {"algorithm": {"learning_rate_schedule": "linear"}},
            ["algorithm.learning_rate_schedule = linear", "stop.max_steps", "stop.max_rounds"],
        ),
    ],
)
def test_contradictions_are_refused(tree: dict[str, Any], names: list[str]):
    text = refusal(MINIMAL | tree)
    assert all(name in text for name in names)


# The tree itself


def test_resolving_fills_every_computed_default_and_is_idempotent():
    experiment = experiment_from_tree(MINIMAL | {"actor": {"timeout_s": 33}}, source="x.yaml")
    resolved = experiment.resolved()
    assert resolved.fleet.kind == "local"
    assert resolved.fleet.round_deadline_s == 66
    assert resolved.fleet.processes >= 1
    assert resolved.learner.threads >= 1
    assert resolved.resolved() == resolved
    # The result is still a tree that its own rules allow.
    assert Experiment.model_validate(resolved.model_dump()).resolved() == resolved


@pytest.mark.parametrize(
    ("changed", "is_deployed", "vector"),
    [
        ({"scaler.actors_fixed": 4, "fleet.processes": 2}, False, 2),
        ({"scaler.actors_fixed": 5, "fleet.processes": 2}, False, 3),
        ({"scaler.actors_fixed": 2, "fleet.processes": 4}, False, 1),
        ({"scaler.actors_fixed": 200, "fleet.processes": 2}, False, 16),
        ({"scaler.kind": "nitro", "scaler.actors_max": 12, "fleet.processes": 3}, False, 4),
        ({"scaler.actors_fixed": 4, "fleet.processes": 2, "fleet.kind": "local"}, True, 2),
        (
            {
                "scaler.actors_fixed": 4,
                "learner.instance_types": ["c7i.large"],
                "fleet.kind": "local",
            },
            True,
            2,
        ),
        ({"scaler.actors_fixed": 4}, True, 1),
        ({"scaler.actors_fixed": 4, "fleet.kind": "lambda"}, True, 1),
        ({"scaler.actors_fixed": 4, "fleet.kind": "ray"}, False, 1),
        ({"scaler.actors_fixed": 4, "fleet.processes": 2, "algorithm.kind": "impact"}, False, 1),
        (
            {
                "scaler.actors_fixed": 4,
                "fleet.processes": 2,
                "algorithm.kind": "impact",
                "algorithm.rounds": "synchronous",
            },
            False,
            2,
        ),
    ],
    ids=str,
)
def test_environments_in_lock_step_are_spread_over_the_processes(
    changed: dict[str, Any], is_deployed: bool, vector: int
):
    assert (
        experiment_from_tree(tree_with_all(changed), source="x.yaml")
        .resolved(is_deployed=is_deployed)
        .environment.vector
        == vector
    )


@pytest.mark.parametrize(
    ("kind", "is_deployed", "resolved"),
    [
        ("auto", False, "local"),
        ("auto", True, "lambda"),
        ("local", False, "local"),
        ("local", True, "local"),
        ("lambda", False, "lambda"),
        ("lambda", True, "lambda"),
    ],
)
def test_actors_run_on_lambda_where_the_learner_was_deployed(
    kind: str, is_deployed: bool, resolved: str
):
    experiment = experiment_from_tree(MINIMAL | {"fleet": {"kind": kind}}, source="x.yaml")
    assert experiment.fleet.kind == kind
    assert experiment.resolved(is_deployed=is_deployed).fleet.kind == resolved
    assert experiment.resolved().fleet.kind == experiment.resolved(is_deployed=False).fleet.kind


def test_resolving_keeps_what_was_given():
    tree = MINIMAL | {
        "actor": {"provisioned": 0},
        "fleet": {"processes": 3, "round_deadline_s": 100},
        "learner": {"threads": 1},
    }
    experiment = experiment_from_tree(tree, source="x.yaml")
    resolved = experiment.resolved()
    assert (
        resolved.actor.provisioned,
        resolved.fleet.processes,
        resolved.fleet.round_deadline_s,
        resolved.learner.threads,
    ) == (0, 3, 100, 1)


@pytest.mark.parametrize("kind", UPDATERS.settings)
def test_only_the_learners_machine_decides_more_than_resolving(kind: str):
    tree = tree_with_all({"learner.kind": kind})
    resolved = experiment_from_tree(tree, source="x.yaml").resolved()
    values = dict(
        leaves(resolved.fitted(Spaces((3,), action_size=2), preprocessing="none").model_dump())
    )
    settled = {"learner.device", "learner.backend", "learner.reduction"}
    assert {path for path, value in values.items() if value == "auto"} <= settled
    filled = [path for path, info in FIELDS.items() if OR_NULL in info.metadata]
    assert len(filled) == 5 and not [path for path in filled if values[path] is None]


# A run's identity, whatever it costs

CHANGEABLE_LEAVES = set(
    "budget.usd budget.lifetime_hours stop.max_rounds stop.max_steps stop.target_return fleet.kind fleet.processes "
    "fleet.round_deadline_s cache.kind cache.url "
    "learner.update_timeout_s learner.instance_types learner.market "
    "learner.device learner.kind learner.place learner.backend learner.environments "
    "learner.function_memory_mib learner.function_timeout_s "
    "actor.provisioned fleet.address fleet.cpus_per_actor fleet.nodes "
    "fleet.node_usd_per_hour".split()
)


def identified(path: str = "seed", **leaf: Any) -> Experiment:
    """Returns an experiment with an end that reads the key. Its algorithm has both kinds of rounds if possible."""
    tree = {
        "algorithm.kind": "impact",
        "algorithm.rounds": "synchronous",
        "stop.max_rounds": 77,
        "stop.max_steps": 7777,
    }
    return experiment_from_tree(tree_with_all(tree | deciders(path) | leaf), source="x.yaml")


def others(path: str, default: Any) -> Iterator[Any]:
    """Yields values that this field may have instead of its default."""
    if path == "learner.kind":
        # A run may continue with this one.
        yield "function"
    for kind, _ in kinds_of(path):
        if get_origin(kind) is Literal:
            yield from reversed(get_args(kind))
        elif kind is bool:
            yield not default
        elif kind in (int, float):
            yield from (kind(number) for number in (61, 7, 1, 0.5, 777))
        elif kind is str:
            yield from ("another", "auto")
        elif kind is not type(None):
            yield from ([[1, 9]], ["p3.2xlarge"], ["a.Wrapper"], {"a": 1}, [32])


def with_another(path: str) -> Experiment:
    default = identified(path)
    for key in path.split("."):
        default = getattr(default, key)
    for value in others(path, default):
        if value != default:
            try:
                return identified(path, **{path: value})
            except ExperimentError:
                continue
    raise AssertionError(f"no other value for {path}")


@pytest.mark.parametrize("path", LEAVES)
def test_a_run_is_the_same_run_exactly_where_only_what_is_changeable_differs(path: str):
    for resolve in (lambda experiment: experiment, Experiment.resolved):
        base, changed = resolve(identified(path)), resolve(with_another(path))
        assert base != changed
        assert (changed.identity == base.identity) == (path in CHANGEABLE_LEAVES)


def test_the_identity_survives_the_yaml_and_is_the_same_everywhere(tmp_path: Path):
    resolved = identified().resolved()
    assert (
        load_experiment(written(tmp_path, resolved.to_yaml())).resolved().identity
        == resolved.identity
    )
    assert len(resolved.identity) == 64
    assert set(resolved.identity) <= set("0123456789abcdef")


def values_for(path: str) -> st.SearchStrategy:
    strategies: list[st.SearchStrategy] = []
    if path == "scaler.schedule":
        return st.lists(
            st.tuples(st.integers(1, 10**12), st.integers(1, 10_000)).map(list), min_size=1
        )
    if path == "network.hidden_sizes":
        return st.none() | st.lists(st.integers(1, 16_384), min_size=1)
    if (
        path == "callbacks"
        or path.startswith("environment.")
        and path.rpartition(".")[2] in ("kwargs", "wrappers")
    ):
        values = st.none() | st.integers(-9, 9) | st.floats(-1e9, 1e9) | st.text(string.printable)
        arguments = st.dictionaries(st.text(string.printable), values | st.lists(values))
        is_wrapped = path != "environment.kwargs"
        return (
            st.lists(st.just("a.b") | st.fixed_dictionaries({"c.D": arguments}))
            if is_wrapped
            else arguments
        )
    for kind, bounds in kinds_of(path):
        low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        if kind is type(None):
            strategies.append(st.none())
        elif get_origin(kind) is Literal:
            strategies.append(st.sampled_from(get_args(kind)))
        elif kind is int:
            strategies.append(
                st.integers(low, high - ("lt" in bounds) if high is not None else None)
            )
        elif kind is float:
            strategies.append(
                st.floats(
                    low,
                    high,
                    exclude_min="gt" in bounds and low is not None,
                    exclude_max="lt" in bounds and high is not None,
                    allow_nan=False,
                    allow_infinity=False,
                )
            )
        elif kind is bool:
            strategies.append(st.booleans())
        elif kind is str:
            strategies.append(
                st.text(string.printable, min_size=1)
                | st.sampled_from(
                    [
                        "1e5",
                        "5e-5",
                        ".5e3",
                        "null",
                        "true",
                        "0x10",
                        "2001-01-01",
                        "1_000",
                        "1:30",
                        "~",
                        "=",
                        "<<",
                        "é: #",
                    ]
                )
            )
        else:
            strategies.append(
                st.lists(st.text(min_size=1).filter(lambda text: text.isprintable()), min_size=1)
            )
    return st.one_of(strategies)


@settings(max_examples=60)
@given(
    values=st.dictionaries(
        st.sampled_from([path for path in LEAVES if path != "cache.url"]), st.none(), max_size=12
    ).flatmap(lambda chosen: st.fixed_dictionaries({path: values_for(path) for path in chosen}))
)
def test_the_resolved_tree_survives_its_yaml(tmp_path: Path, values: dict[str, Any]):
    path = written(tmp_path, yaml_text.dump(tree_with_all(values)))
    try:
        resolved = load_experiment(path, is_of_run=True).resolved()
    except ExperimentError as error:
        assert "is not allowed" not in str(error), "drawn from the allowed values"
        return
    assert load_experiment(written(tmp_path, resolved.to_yaml())).resolved() == resolved


# Secrets

SECRET_URLS = [
    f"redis://:{SECRET}@cache.example:6379/0",
    f"rediss://user:{SECRET}@cache.example",
    f"redis://user:{SECRET}@[::1]:6379",
    f"unix://user:{SECRET}@/run/cache.sock",
    # redis-py documents both forms.
    f"unix:///run/cache.sock?db=0&password={SECRET}",
    f"redis://cache.example?password={SECRET}",
]


@pytest.mark.parametrize("url", SECRET_URLS)
def test_a_password_is_not_in_the_yaml(url: str):
    text = experiment_from_tree(tree_with("cache.url", url), source="x.yaml").resolved().to_yaml()
    assert SECRET not in text
    assert yaml.safe_load(text)["cache"]["url"]


@pytest.mark.parametrize("url", [SECRET_URLS[0], SECRET_URLS[4]], ids=["authority", "query"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda url: {"kind": "no-such", "url": url},
        lambda url: {"kind": "redis", "ulr": url},
        lambda url: {"url": [url]},
        lambda url: {"url": {"host": url}},
        lambda url: url,
        lambda url: [url],
    ],
    ids=["sibling", "misspelt", "list", "mapping", "section", "section-list"],
)
def test_a_password_is_in_no_error(url: str, wrap):
    assert SECRET not in refusal(tree_with("cache", wrap(url)))


@pytest.mark.parametrize(
    "text",
    [
        f"cache:\n  url: redis://:{SECRET}@h: x\n",
        f"cache:\n  url: 'redis://:{SECRET}@h\n",
        f"cache: {{url: redis://:{SECRET}@h\nseed: 5\n",
        f"cache:\n  url: redis://:{SECRET}@h\n  url: redis://h\n",
    ],
    ids=["colon", "quote", "brace", "twice"],
)
def test_a_password_is_in_no_error_about_yaml(tmp_path: Path, text: str):
    assert SECRET not in load_refusal(tmp_path, MINIMAL_YAML + text)


# Arbitrary input

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=4)
    | st.dates()
    | st.sampled_from([2**63, -1, 10**400, 1e308])
)
KEYS = st.sampled_from(sorted({part for path in FIELDS for part in path.split(".")})) | SCALARS
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    tree=st.dictionaries(KEYS, ANYTHING, max_size=5),
    replaced=st.dictionaries(st.sampled_from(list(FIELDS)), ANYTHING, max_size=3),
)
def test_any_tree_is_accepted_or_refused_in_words(tree: dict, replaced: dict[str, Any]):
    for path, value in replaced.items():
        *sections, key = path.split(".")
        node = tree
        for section in sections:
            if not isinstance(node.get(section), dict):
                node[section] = {}
            node = node[section]
        node[key] = value
    try:
        experiment = experiment_from_tree(MINIMAL | tree, source="x.yaml")
    except ExperimentError as error:
        assert len(str(error).splitlines()) >= 2
    else:
        assert isinstance(experiment.resolved().to_yaml(), str)


@pytest.mark.parametrize(
    ("leaf", "told"),
    [
        ({"learner": {"device": "cuda"}}, "learner.device = 'cuda': .*; allowed: auto | cpu"),
        (
            {"algorithm": {"kind": "impact"}},
            r"algorithm.rounds = null \(asynchronous\): .*; allowed: synchronous",
        ),
        (
            {"algorithm": {"kind": "impact", "rounds": "asynchronous"}},
            "algorithm.rounds = asynchronous: ",
        ),
        (
            {"learner": {"kind": "function", "function_timeout_s": 200}},
            "learner.function_timeout_s = 200 .*; allowed: 1 to 120",
        ),
        *[
            (
                {
                    "learner": {"kind": "stellaris"},
                    "algorithm": {"kind": kind, "rounds": "synchronous"},
                },
                f"algorithm.kind = {kind} .*; allowed: ppo",
            )
            for kind in ("impact", "impala")
        ],
    ],
)
def test_what_a_learner_that_is_a_function_cannot_have_is_refused(leaf: dict[str, Any], told: str):
    tree, learner = MINIMAL | leaf, leaf.get("learner", {})
    experiment_from_tree(
        {"learner": {"kind": "instance"}}, base=tree | {"learner": learner}, source="x.yaml"
    )
    with pytest.raises(ExperimentError, match=told):
        experiment_from_tree(tree | {"learner": {"kind": "function"} | learner}, source="x.yaml")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("leaves:Settings", "cannot be imported: SystemExit: 0"),
        (
            "runtime.experiment.scaler:ScalerSettings",
            "is not allowed; allowed: a subclass of nitro_rl.ScalerSettings",
        ),
    ],
)
def test_a_kind_whose_module_leaves_or_that_is_the_base_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=re.escape(f"scaler.kind = {kind!r} {said}")):
        experiment_from_tree(tree_with_all({"scaler.kind": kind}), source="test")


OWN_KIND = """
from typing import ClassVar
from nitro_rl import ScalerSettings
from runtime.experiment.section import Field, Json, Section
class Tuning(Section):
    gain: float = Field(description="the gain")
class Settings(ScalerSettings):
    about: ClassVar[str] = "a kind of one's own"
    tuning: Tuning = Field(description="how it is tuned")
    notes: Json = Field(None, description="anything")
"""


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "scaler.tuning is missing: how it is tuned"),
        ({"tuning": {}}, "scaler.tuning.gain is missing: how it is tuned"),
        ({"tuning": {"gain": "a"}}, "scaler.tuning.gain = 'a' is not allowed: Input should be a "),
        ({"tuning": 3}, "scaler.tuning = 3 is not allowed; allowed: a section of keys: gain"),
        (
            {"tuning": {"gain": 1}, "notes": float("nan")},
            "scaler.notes = nan is not allowed; allowed: a JSON value",
        ),
    ],
    ids=str,
)
def test_keys_of_a_kind_of_ones_own_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], said: str
) -> None:
    (tmp_path / "own_kind.py").write_text(OWN_KIND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(SCALERS, "settings", dict(SCALERS.settings))
    assert f"  {said}" in refusal(MINIMAL | {"scaler": {"kind": "own_kind:Settings"} | keys})
    assert "scaler.notes" in "\n".join(explained("scaler"))
