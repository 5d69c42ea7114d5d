"""Keys that a run never reads: refused if they are next to the key that decides this, and named if they are further
down.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cli.arguments import say_unused
from runtime.errors import ExperimentError
from runtime.experiment.explaining import section_of
from runtime.experiment.loading import (
    experiment_from_tree,
    load_experiment,
    self_contained,
)
from runtime.experiment.scaler import SCALERS
from runtime.experiment.schema import Experiment
from runtime.experiment.unused import unused
from tests.experiment.trees import FIELDS, tree_with
from tests.scaler.schedulers import make_scheduler

LEAVES = [path for path, info in FIELDS.items() if section_of(info) is None]
NITRO = "environment: {id: Hopper-v5}\nbudget: {usd: 1}\nscaler: {kind: nitro, actors_max: 32, decay_factor: 0.9}\n"


def written(folder: Path, **texts: str) -> Path:
    """Writes NAME.yaml for each text; returns the path of the first."""
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(texts))}.yaml"


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path, overrides)
    return str(caught.value)


def never_read(experiment: Experiment) -> list[str]:
    return [key for found in unused(experiment) for key in found.keys]


@pytest.mark.parametrize("kind", SCALERS.settings)
def test_a_scaler_reads_the_signals_that_its_settings_name(kind: str, tmp_path: Path) -> None:
    make_scheduler().save(tmp_path / "a.safetensors")
    files = {"minions": {"scheduler": str(tmp_path / "a.safetensors"), "actors_min": 1}}
    section = experiment_from_tree(
        tree_with({"scaler": {"kind": kind, **files.get(kind, {})}, "stop.target_return": 9.0}),
        source="x",
    ).scaler
    assert section.make().signals == section.signals


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (
            "scaler: {kind: fixed, window_rounds: 3}",
            [],
            "scaler.window_rounds is not a known key of scaler.kind = fixed; allowed with scaler.kind = nitro",
        ),
        (
            "scaler: {kind: nitro, actors_fixed: 5}",
            [],
            "scaler.actors_fixed is not a known key of scaler.kind = nitro; allowed with scaler.kind = fixed",
        ),
        (
            "scaler: {actors_max: 32}",
            [],
            "scaler.actors_max = 32 is never read with scaler.kind = fixed; "
            "allowed: any other scaler.kind, or leave it out",
        ),
        (
            "scaler: {kind: fixed}",
            ["scaler.window_rounds=3"],
            "scaler.window_rounds is not a known key of scaler.kind = fixed",
        ),
        (
            "",
            ["scaler.kind=fixed", "scaler.window_rounds=3"],
            "scaler.window_rounds is not a known key of scaler.kind = fixed",
        ),
        (
            "scaler: {kind: fixed, actors_max: 9}",
            [],
            "scaler.actors_max = 9 is never read with scaler.kind = fixed; "
            "allowed: any other scaler.kind",
        ),
        (
            "scaler: {kind: fixed}\ndetector: {subset_size: 9}",
            [],
            "detector.subset_size = 9 is never read with "
            "scaler.kind = fixed; allowed: scaler.kind = nitro, or",
        ),
        (
            "algorithm: {kind: ppo, buffer_batches: 2}",
            [],
            "algorithm.buffer_batches is not a known key of algorithm.kind = ppo; "
            "allowed with algorithm.kind = impact",
        ),
        (
            "algorithm: {staleness_max: 9}",
            [],
            "algorithm.staleness_max = 9 is never read with algorithm.kind = ppo "
            "and algorithm.rounds = null, its default; allowed: asynchronous "
            "rounds, which algorithm.kind = impact | "
            "impala can have",
        ),
        (
            "algorithm: {kind: ppo, kl_target: 0.1}",
            [],
            "algorithm.kl_target = 0.1 is never read with "
            "algorithm.kl_coefficient = 0.0, its default; allowed: algorithm.kl_coefficient above 0",
        ),
        (
            "learner: {learners: 2}",
            [],
            "learner.learners is not a known key of learner.kind = instance; allowed with "
            "learner.kind = stellaris",
        ),
        (
            "learner: {kind: instance, function_timeout_s: 9}",
            [],
            "allowed with learner.kind = function | stellaris",
        ),
        (
            "learner: {kind: function, market: spot}",
            [],
            "learner.market = 'spot' is never read with learner.kind = ",
        ),
        (
            "fleet: {nodes: 2}",
            [],
            "fleet.nodes is not a known key of fleet.kind = auto; allowed with fleet.kind = ray",
        ),
        (
            "fleet: {kind: ray}\nlearner: {market: spot}",
            [],
            "learner.market = 'spot' is never read with fleet.kind = ",
        ),
        (
            "fleet: {kind: ray}\nlearner: {kind: external, threads: 4}",
            [],
            "learner.threads = 4 is never read with learner.kind = external; allowed: learner.kind = instance | ",
        ),
        (
            "fleet: {kind: lambda, processes: 2}",
            [],
            "fleet.processes = 2 is never read with fleet.kind = lambda; "
            "allowed: fleet.kind = auto | local | ray, or",
        ),
        ("cache: {kind: none, url: 'redis://:tooth@h'}", [], "cache.url = "),
    ],
)
def test_a_key_that_is_never_read_is_refused_beside_what_decides_that(
    tmp_path: Path, text: str, overrides: list[str], words: str
) -> None:
    told = refusal(
        written(tmp_path, a=f"environment: {{id: Hopper-v5}}\nbudget: {{usd: 1}}\n{text}\n"),
        *overrides,
    )
    assert words in told
    assert "1 problem:" in told and "tooth" not in told


def test_a_ray_cluster_reads_an_instances_price_whatever_trains() -> None:
    fleet = {"kind": "ray"}
    learner = {"kind": "function", "instance_types": ["c7i.large"]}
    tree = tree_with({"fleet": fleet, "learner": learner})
    assert not experiment_from_tree(tree, source="x").not_used


def test_what_stands_below_is_not_used_and_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, a=NITRO)
    experiment = load_experiment(path, ["scaler.kind=fixed", "scaler.actors_fixed=4"])
    say_unused(experiment)
    assert capsys.readouterr().out == (
        "not used     scaler.decay_factor, scaler.actors_max (scaler.kind = fixed)\n"
    )
    say_unused(load_experiment(path))
    assert capsys.readouterr().out == ""
    extending = written(tmp_path, b="extends: a.yaml\nscaler: {kind: fixed}\n")
    assert load_experiment(extending).not_used == {
        "scaler.decay_factor": f"scaler.kind = fixed in {extending}",
        "scaler.actors_max": "scaler.kind = fixed",
    }
    assert "(in " not in refusal(extending, "scaler.decay_factor=0.5")


def test_a_base_that_is_wrong_in_itself_is_refused_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path, b="extends: a.yaml\nseed: 3\n", a=NITRO + "fleet: {nodes: 2}\n")
    assert f"fleet.kind = ray (in {tmp_path / 'a.yaml'})" in refusal(path)


def test_a_run_is_what_it_reads(tmp_path: Path) -> None:
    """Unused keys change neither the run nor its records."""
    path = written(tmp_path, a=NITRO)
    fixed = ["scaler.kind=fixed", "scaler.actors_fixed=8"]
    changed, plain = (
        load_experiment(path, fixed),
        load_experiment(
            written(
                tmp_path,
                b=NITRO.replace(
                    "kind: nitro, actors_max: 32, decay_factor: 0.9", "kind: fixed, actors_fixed: 8"
                ),
            )
        ),
    )
    assert changed.resolved() == plain.resolved()
    text = changed.resolved().to_yaml()
    assert "scaler:\n  kind: fixed\n  actors_min: 8\n  actors_fixed: 8\n" in text
    assert not any(
        word in text for word in ("decay_factor", "impact", "detector", "stellaris", "ray:")
    )
    path = written(tmp_path, c="extends: a.yaml\nscaler: {kind: fixed, actors_fixed: 8}\n")
    copy = tmp_path / "copy.yaml"
    copy.write_bytes(self_contained(path))
    assert load_experiment(copy).resolved() == plain.resolved()


def test_a_runs_own_file_may_have_all_keys_but_the_command_line_may_not(tmp_path: Path) -> None:
    everything = load_experiment(written(tmp_path, a=NITRO)).model_dump(mode="json")
    path = written(
        tmp_path,
        config=repr(everything)
        .replace("None", "null")
        .replace("True", "true")
        .replace("False", "false")
        .replace("()", "[]"),
    )
    assert "never read" in refusal(path)
    assert (
        load_experiment(path, is_of_run=True).resolved()
        == load_experiment(tmp_path / "a.yaml").resolved()
    )
    with pytest.raises(ExperimentError, match="scaler.schedule is not a known key"):
        load_experiment(path, ["scaler.schedule=3"], is_of_run=True)
