"""What files, files that they extend and overrides mean together: which values win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.loading import UntrustedCodeError, load_experiment, self_contained

BASE = (
    "environment: {id: Hopper-v5}\nbudget: {usd: 1.0}\nstop: {max_rounds: 3, target_return: 9.0}\n"
)
PPO = "algorithm: {kind: ppo, epochs: 3, learning_rate: 0.1, rounds: synchronous}\n"
NITRO = "environment: {id: Hopper-v5}\nbudget: {usd: 1}\nscaler: {kind: nitro, actors_max: 32, decay_factor: 0.9}\n"


def files(folder: Path, **texts: str) -> Path:
    """Writes NAME.yaml for each text; returns the path of the first."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / f"{next(iter(texts))}.yaml"


def refusal(path: Path, *overrides: str, **options: bool) -> str:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path, overrides, **options)
    return str(caught.value)


def test_the_nearest_file_counts_key_by_key_over_several_levels(tmp_path: Path) -> None:
    path = files(
        tmp_path,
        top="extends: middle.yaml\nstop: {max_steps: 500}\nseed: 3\n",
        middle="extends: bases/base.yaml\nseed: 2\nstop: {max_rounds: 4}\n",
        bases__base=BASE + "seed: 1\n",
    )
    experiment = load_experiment(path, ["stop.max_steps=600", "cache.url=redis://h:1/0?a=b"])
    assert (experiment.seed, experiment.budget.usd) == (3, 1.0)
    stop = {"max_rounds": 4, "max_steps": 600, "target_return": 9.0}
    assert experiment.stop.model_dump() == stop
    assert experiment.cache.url == "redis://h:1/0?a=b"


def test_numbers_and_texts_are_what_people_mean(tmp_path: Path) -> None:
    path = files(tmp_path, a=BASE)
    for text, value in {"5e-5": 5e-5, "1E3": 1000.0, ".5e1": 5.0, "+2e-0": 2.0, "7": 7.0}.items():
        algorithm = load_experiment(path, [f"algorithm.learning_rate={text}"]).algorithm
        assert algorithm.learning_rate == value
    for text, count in {"1e6": 1_000_000, "2.0": 2, "1e12": 10**12, "null": None}.items():
        found = load_experiment(path, [f"stop.max_rounds={text}"]).stop.max_rounds
        assert (found, type(found)) == (count, type(count))
    tricky = {"kwargs": ["1:30", "1e5", "null", "0x10", "2001-01-01", "~", "<<", "é: #", 1e5, None]}
    assert yaml_text.parse(yaml_text.dump(tricky), "x") == tricky


def test_what_is_wrong_is_told_with_the_file_in_which_it_stands(tmp_path: Path) -> None:
    path = files(
        tmp_path,
        a="extends: b.yaml\nstop: {max_round: 1}\n",
        b=BASE + "sede: 5\nactor: {timeout_s: 0}\nseed: -1\n",
    )
    inside = f" (in {tmp_path / 'b.yaml'})"
    assert sorted(refusal(path, "seed=-2").splitlines()) == [
        f"  actor.timeout_s = 0 is not allowed; allowed: a whole number from 1 to 900{inside}",
        f"  sede is not a known key; did you mean seed?{inside}",
        "  seed = -2 is not allowed; allowed: a whole number from 0 below 9,223,372,036,854,775,808",
        "  stop.max_round is not a known key; did you mean stop.max_rounds?",
        f"{path}: 4 problems:",
    ]
    for text, said in {
        "- a\n": "is not a mapping",
        "seed: [1": "cannot be read",
        "extends: ./a.yaml": f"circle: {path} → {tmp_path / 'b.yaml'} → {path}",
    }.items():
        files(tmp_path, b=text)
        assert "b.yaml" in refusal(path) and said in refusal(path)


def test_a_package_in_a_base_is_found_from_the_file_that_extends_it(tmp_path: Path) -> None:
    base = "environment: {id: 'mine:make', package: mine}\nbudget: {usd: 1.0}\n"
    path = files(tmp_path, a="extends: bases/b.yaml", bases__b=base)
    files(tmp_path, runs__c="extends: ../a.yaml")
    assert load_experiment(path).environment.package == "mine", "a requirement, for all we know"
    (tmp_path / "bases" / "mine").mkdir()
    for name, package in {"a": "bases/mine", "bases/b": "mine", "runs/c": "../bases/mine"}.items():
        assert load_experiment(tmp_path / f"{name}.yaml").environment.package == package


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"algorithm": {"kind": "ppo", "epochs": 3}}, {"kind": "ppo", "clip": 0.2}),
        ({"environment": {"kwargs": {"b": 2}}}, {"id": "Hopper-v5", "kwargs": {"b": 2}}),
        ({"environment": {"kwargs": {}}}, {"kwargs": {}}),
    ],
    ids=str,
)
def test_a_mapping_of_the_command_line_counts_like_a_file_that_extends(
    tmp_path: Path, changed: dict[str, dict[str, Any]], read: dict[str, Any]
) -> None:
    base = BASE.replace("v5", "v5, kwargs: {a: 1}") + "algorithm: {kind: impact, clip: 0.3}\n"
    path = files(tmp_path, a="extends: b.yaml\n" + yaml.safe_dump(changed), b=base)
    [(name, section)] = changed.items()
    experiment = load_experiment(tmp_path / "b.yaml", ["seed=0", f"{name}={section}"])
    assert experiment.model_dump()[name].items() >= read.items()
    assert experiment.model_dump() == load_experiment(path).model_dump()


# Another kind


def test_another_kind_or_environment_drops_the_keys_of_the_old_one(tmp_path: Path) -> None:
    path = files(
        tmp_path,
        b="extends: a.yaml\nalgorithm: {kind: impact, uses_max: 3}\nenvironment: {id: Ant-v5}\n",
        a=BASE + PPO,
        c="extends: b.yaml\nalgorithm: {kind: ppo, clip: 0.3}\n",
        d="extends: b.yaml\nalgorithm: {epochs: 5}\n",
    )
    experiment = load_experiment(path)
    impact, stop = experiment.algorithm, experiment.stop
    assert (impact.rounds, impact.learning_rate) == ("synchronous", 5e-4)
    assert (stop.max_rounds, stop.target_return) == (3, None)
    overrides = ["algorithm.kind=impact", "algorithm.clip=0.4", "stop.target_return=5"]
    top = load_experiment(tmp_path / "c.yaml", overrides)
    assert (top.algorithm.clip, top.algorithm.uses_max) == (0.4, impact.uses_max - 1)
    assert top.stop.target_return == 5
    files(tmp_path, e=BASE + "algorithm: {epochs: 5}\n")
    default = load_experiment(tmp_path / "e.yaml", ["algorithm.kind=ppo"]).algorithm
    assert default.epochs == 5, "no other kind than before"
    assert "algorithm.epochs is not a known key of algorithm.kind = impact" in refusal(
        tmp_path / "d.yaml"
    )


def test_a_file_without_others_is_the_same_run(tmp_path: Path) -> None:
    path = files(tmp_path, b="extends: a.yaml\nscaler: {kind: fixed}\n", a=NITRO)
    (tmp_path / "copy.yaml").write_bytes(shipped := self_contained(path))
    assert b"extends" not in shipped and b"decay" not in shipped
    changed = load_experiment(tmp_path / "a.yaml", ["scaler.kind=fixed"]).resolved()
    for name in ("b", "copy"):
        assert load_experiment(tmp_path / f"{name}.yaml").resolved() == changed
    assert self_contained(tmp_path / "a.yaml") == NITRO.encode(), "byte for byte"


# A run's own file


def test_a_runs_own_file_names_neither_files_nor_code(tmp_path: Path) -> None:
    path = files(tmp_path, config="extends: a.yaml\n", a=NITRO)
    assert "config.yaml stands for itself" in refusal(path, is_of_run=True)
    files(tmp_path, config=BASE + "scaler: {kind: 'os:abort'}\n")
    with pytest.raises(UntrustedCodeError, match="is code, and code that a run names is not run"):
        load_experiment(path, is_of_run=True)
    assert "a subclass of" in refusal(path, is_of_run=True, may_import=True)
