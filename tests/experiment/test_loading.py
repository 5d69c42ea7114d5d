"""What files, files that they extend and overrides mean together: which values win, and which keys are not used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.cli.arguments import say_unused
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


# Keys that are not used


def test_another_kind_drops_the_keys_of_the_old_one_and_each_is_named(tmp_path: Path) -> None:
    files(
        tmp_path,
        a=BASE + PPO,
        b="extends: a.yaml\nalgorithm: {kind: impact, uses_max: 3}\nenvironment: {id: Ant-v5}\n",
        c="extends: b.yaml\nalgorithm: {kind: ppo, clip: 0.3}\n",
    )
    b, c = tmp_path / "b.yaml", tmp_path / "c.yaml"
    impact = load_experiment(b).algorithm
    assert (impact.rounds, impact.learning_rate) == ("synchronous", 5e-4)
    top = load_experiment(c, ["algorithm.kind=impact", "algorithm.clip=0.4"])
    assert top.not_used_text == (
        f"stop.target_return (environment.id = Ant-v5 in {b}); algorithm.epochs, "
        f"algorithm.learning_rate (algorithm.kind = impact in {b}); algorithm.uses_max (algorithm.kind = ppo in {c})"
    )
    assert top.algorithm.clip == 0.4, "set again, so not named"
    files(tmp_path, d="extends: b.yaml\nalgorithm: {epochs: 5}\n")
    assert "algorithm.epochs is not a known key of algorithm.kind = impact" in refusal(
        tmp_path / "d.yaml"
    )


def test_a_run_is_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys that it does not use change neither the run nor its files, and are named."""
    fixed = "scaler: {kind: fixed, actors_fixed: 8}\n"
    path = files(
        tmp_path,
        b=f"extends: a.yaml\n{fixed}",
        a=NITRO,
        plain=f"environment: {{id: Hopper-v5}}\nbudget: {{usd: 1}}\n{fixed}",
    )
    plain, extending = load_experiment(tmp_path / "plain.yaml"), load_experiment(path)
    changed = load_experiment(tmp_path / "a.yaml", ["scaler.kind=fixed", "scaler.actors_fixed=8"])
    say_unused(changed)
    say_unused(plain)
    assert capsys.readouterr().out == (
        "not used     scaler.decay_factor, scaler.actors_max (scaler.kind = fixed)\n"
    )
    assert extending.not_used == {
        "scaler.decay_factor": f"scaler.kind = fixed in {path}",
        "scaler.actors_max": "scaler.kind = fixed",
    }
    text = plain.resolved().to_yaml()
    assert "scaler:\n  kind: fixed\n  actors_min: 8\n  actors_fixed: 8\n" in text
    (tmp_path / "copy.yaml").write_bytes(shipped := self_contained(path))
    assert b"extends" not in shipped and b"decay" not in shipped and b"actors_max" not in shipped
    for one in (changed, extending, load_experiment(tmp_path / "copy.yaml")):
        assert one.resolved() == plain.resolved()
        assert one.resolved().to_yaml() == text
    assert self_contained(tmp_path / "a.yaml") == NITRO.encode(), "byte for byte"


def test_a_base_that_is_wrong_in_itself_is_refused_by_its_name(tmp_path: Path) -> None:
    path = files(tmp_path, b="extends: a.yaml\n", a=BASE + "detector: {subset_size: 9}\n")
    assert f"or leave it out (in {tmp_path / 'a.yaml'})" in refusal(path)
    ray = ["fleet.kind=ray", "learner.kind=function", "learner.instance_types=[c7i.large]"]
    assert not load_experiment(files(tmp_path, c=BASE), ray).not_used, "a cluster's price"


# A run's own file


def test_a_runs_own_file_may_have_all_keys_but_names_neither_files_nor_code(tmp_path: Path) -> None:
    everything = load_experiment(files(tmp_path, a=NITRO)).model_dump(mode="json")
    path = files(tmp_path, config=yaml.safe_dump(everything))
    assert "never read" in refusal(path)
    run = load_experiment(path, is_of_run=True).resolved()
    assert run == load_experiment(tmp_path / "a.yaml").resolved()
    assert "scaler.schedule is not a known key" in refusal(
        path, "scaler.schedule=3", is_of_run=True
    )
    files(tmp_path, config="extends: a.yaml\n")
    assert "config.yaml stands for itself" in refusal(path, is_of_run=True)
    files(tmp_path, config=BASE + "scaler: {kind: 'os:abort'}\n")
    with pytest.raises(UntrustedCodeError, match="is code, and code that a run names is not run"):
        load_experiment(path, is_of_run=True)
    assert "a subclass of" in refusal(path, is_of_run=True, may_import=True)
