"""Files that extend others: which values win, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.errors import ExperimentError
from runtime.experiment import yaml_text
from runtime.experiment.loading import load_experiment, self_contained

ROOT = Path(__file__).resolve().parents[2]
BASE = (
    "environment: {id: Hopper-v5}\nbudget: {usd: 1.0}\nstop: {max_rounds: 3, target_return: 9.0}\n"
)


def files(folder: Path, **texts: str) -> Path:
    """Writes NAME.yaml for each text; returns the path of the first."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder / f"{next(iter(texts))}.yaml"


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path, overrides)
    return str(caught.value)


def test_the_nearest_file_counts_key_by_key_over_several_levels(tmp_path: Path) -> None:
    path = files(
        tmp_path,
        top="extends: middle.yaml\nstop: {max_steps: 500}\nseed: 3\n",
        middle="extends: bases/base.yaml\nseed: 2\nstop: {max_rounds: 4}\n",
        bases__base=BASE + "seed: 1\n",
    )
    experiment = load_experiment(path, ["stop.max_steps=600"])
    assert experiment.seed == 3
    assert (
        experiment.stop.max_rounds,
        experiment.stop.max_steps,
        experiment.stop.target_return,
    ) == (4, 600, 9.0)
    assert experiment.budget.usd == 1.0


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("", 9.0),
        ("environment: {id: Hopper-v5}", 9.0),
        ("environment: {id: Walker2d-v5}", None),
        ("environment: {id: Walker2d-v5}\nstop: {target_return: 5.0}", 5.0),
    ],
)
def test_a_base_gives_no_target_return_to_another_environment(
    tmp_path: Path, text: str, target: float | None
) -> None:
    assert (
        load_experiment(files(tmp_path, a=f"extends: b.yaml\n{text}\n", b=BASE)).stop.target_return
        == target
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"a": "extends: a.yaml"}, ["in a circle", "a.yaml → "]),
        (
            {"a": "extends: b.yaml", "b": "extends: ./c.yaml", "c": "extends: b.yaml"},
            ["c.yaml: extends", "circle", " → "],
        ),
        (
            {"a": "extends: nowhere.yaml"},
            ["nowhere.yaml, which ", "a.yaml extends: cannot be read: No such file"],
        ),
        ({"a": "extends: b.yaml", "b": "- a\n"}, ["b.yaml, which ", "is not a mapping"]),
        ({"a": "extends: b.yaml", "b": "seed: [1"}, ["b.yaml, which ", "cannot be read"]),
        ({"a": "extends: 5"}, ["a.yaml: extends = 5 is not allowed", "relative to this one"]),
        ({"a": "extends: [b.yaml, c.yaml]"}, ["is not allowed"]),
        ({"a": BASE + "extend: b.yaml"}, ["extend is not a known key; did you mean extends?"]),
        (
            {
                "a": "extends: b.yaml\nstop: {max_round: 1}",
                "b": BASE + "sede: 5\nactor: {timeout_s: 0}",
            },
            [
                "a.yaml: 3 problems",
                "sede is not a known key; did you mean seed? (in ",
                "b.yaml)",
                "actor.timeout_s = 0",
                "stop.max_round is not a known key; did you mean stop.max_rounds?\n",
            ],
        ),
        ({"a": "{[a]: 1}"}, ["unhashable key"]),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_told_with_the_file_in_which_it_stands(
    tmp_path: Path, texts: dict[str, str], words: list[str]
) -> None:
    text = refusal(files(tmp_path, **texts)) + "\n"
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("seed: 1\nstop:\n  max_rounds: 1\n  max_rounds: 2\n", "line 4, column 3"),
        ("seed: 1\n\nseed: 2\n", "line 3, column 1"),
        ("stop: {max_rounds: 1, max_rounds: 2}\n", "line 1, column 23"),
    ],
)
def test_a_key_that_stands_twice_is_told_where_it_does(
    tmp_path: Path, text: str, place: str
) -> None:
    assert f", {place}: cannot be read: the key " in refusal(files(tmp_path, a=text))


def test_a_merge_key_adds_the_keys_that_a_mapping_lacks(tmp_path: Path) -> None:
    text = "environment: {id: Hopper-v5, kwargs: {'<<': &a {x: 1, y: 2}, b: {<<: *a, y: 3}}}\nbudget: {usd: 1}\n"
    kwargs = load_experiment(files(tmp_path, a=text)).environment.kwargs
    assert kwargs == {"<<": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert yaml_text.parse(yaml_text.dump(kwargs), "x") == kwargs


def test_what_the_command_line_overrides_stands_in_no_file(tmp_path: Path) -> None:
    path = files(tmp_path, a="extends: b.yaml", b=BASE + "seed: 3")
    assert "seed = -1 is not allowed" in (text := refusal(path, "seed=-1"))
    assert "(in " not in text
    assert "(in " in refusal(files(tmp_path, a="extends: b.yaml", b=BASE + "seed: -1"))


def test_a_package_in_a_base_is_found_from_the_file_that_extends_it(tmp_path: Path) -> None:
    base = "environment: {id: 'mine:make', package: mine}\nbudget: {usd: 1.0}\n"
    path = files(tmp_path, a="extends: bases/b.yaml", bases__b=base)
    assert load_experiment(path).environment.package == "mine", (
        "a requirement, as far as anybody can tell"
    )
    (tmp_path / "bases" / "mine").mkdir()
    assert load_experiment(path).environment.package == "bases/mine"
    assert load_experiment(tmp_path / "bases" / "b.yaml").environment.package == "mine"
    files(tmp_path, runs__c="extends: ../a.yaml")
    assert load_experiment(tmp_path / "runs/c.yaml").environment.package == "../bases/mine"


def test_what_is_shipped_needs_no_other_file(tmp_path: Path) -> None:
    path = files(tmp_path, a="extends: b.yaml\nseed: 4  # mine\n", b=BASE)
    shipped: Any = self_contained(path)
    assert "extends" not in yaml.safe_load(shipped)
    (alone := tmp_path / "alone").mkdir()
    (alone / "experiment.yaml").write_bytes(shipped)
    assert load_experiment(alone / "experiment.yaml") == load_experiment(path)
    assert self_contained(tmp_path / "b.yaml") == BASE.encode(), "byte for byte"


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        ({"algorithm": {"minibatch_steps": 64}}, {"kind": "impact", "clip": 0.3}),
        ({"algorithm": {"kind": "ppo", "epochs": 3}}, {"kind": "ppo", "clip": 0.2}),
        ({"stop": {"max_steps": 5000}}, {"target_return": 9.0, "max_rounds": 3}),
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
    by_key = [f"{name}.{key}={value}" for key, value in section.items()]
    for other in (load_experiment(path), load_experiment(tmp_path / "b.yaml", by_key)):
        assert experiment.model_dump() == other.model_dump()


# Another kind

PPO = (
    "environment: {id: CartPole-v1}\nbudget: {usd: 1.0}\n"
    "algorithm: {kind: ppo, epochs: 3, learning_rate: 0.1, rounds: synchronous}\n"
)


def test_another_kind_drops_the_keys_of_the_old_one_also_of_equal_name(tmp_path: Path) -> None:
    path = files(tmp_path, b="extends: a.yaml\nalgorithm: {kind: impact, clip: 0.3}\n", a=PPO)
    experiment = load_experiment(path)
    assert experiment.algorithm.model_dump(include={"kind", "rounds", "clip", "learning_rate"}) == {
        "kind": "impact",
        "rounds": "synchronous",
        "clip": 0.3,
        "learning_rate": 5e-4,
    }
    dropped = ["algorithm.epochs", "algorithm.learning_rate"]
    assert experiment.not_used == dict.fromkeys(dropped, f"algorithm.kind = impact in {path}")
    overridden = load_experiment(
        tmp_path / "a.yaml", ["algorithm.clip=0.3", "algorithm.kind=impact"]
    )
    assert overridden.not_used == dict.fromkeys(dropped, "algorithm.kind = impact")
    copy = tmp_path / "copy.yaml"
    copy.write_bytes(self_contained(path))
    assert load_experiment(copy).algorithm == experiment.algorithm


def test_each_dropped_key_is_named_with_what_dropped_it_and_where(tmp_path: Path) -> None:
    files(
        tmp_path,
        a=PPO + "stop: {target_return: 9.0}\n",
        b="extends: a.yaml\nalgorithm: {kind: impact, uses_max: 3}\nenvironment: {id: Hopper-v5}\n",
        c="extends: b.yaml\nalgorithm: {kind: ppo, clip: 0.3}\n",
    )
    top = load_experiment(tmp_path / "c.yaml", ["algorithm.kind=impact", "algorithm.clip=0.4"])
    b, c = tmp_path / "b.yaml", tmp_path / "c.yaml"
    assert top.not_used_text == (
        f"stop.target_return (environment.id = Hopper-v5 in {b}); algorithm.epochs, "
        f"algorithm.learning_rate (algorithm.kind = impact in {b}); algorithm.uses_max (algorithm.kind = ppo in {c})"
    )
    assert top.algorithm.clip == 0.4, "set again, so not named"


def test_keys_beside_a_new_kind_and_after_it_must_be_its_own(tmp_path: Path) -> None:
    path = files(tmp_path, a=PPO)
    assert refusal(path, "algorithm.kind=impact", "algorithm.epochs=5").endswith(
        "algorithm.epochs is not a known key of algorithm.kind = impact; allowed with "
        "algorithm.kind = ppo"
    )
    later = files(
        tmp_path,
        c="extends: b.yaml\nalgorithm: {epochs: 5}\n",
        b="extends: a.yaml\nalgorithm: {kind: impact}\n",
    )
    assert "algorithm.epochs is not a known key of algorithm.kind = impact" in refusal(later)
