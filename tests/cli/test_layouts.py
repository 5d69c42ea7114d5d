"""``python -m runtime plan --measure``: the layout that it writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.main import main
from runtime.cli.plan_measuring import make_profiler
from runtime.experiment.loading import load_experiment
from runtime.gmi.search import Profile
from tests.helpers import ROOT

HOPPER = ROOT / "experiments" / "hopper-fixed.yaml"
WORLDS = ROOT / "docs" / "example_environment" / "thermostats.yaml"
GMI = {"kind": "gmi", "instances": 8}


@pytest.mark.parametrize(
    ("file", "speeds", "written", "said"),
    [
        (
            HOPPER,
            {0: [90.0], 1: [100.0], 8: [560.0]},
            {**GMI, "environments": 1},
            "fastest here: 8 instances x 1 env",
        ),
        (
            HOPPER,
            {0: [555.0, 561.0], 8: [560.0, 570.0]},
            {"kind": "instance"},
            "nothing is clearly faster here than one learner",
        ),
        (HOPPER, {}, None, "no layout of"),
        (
            WORLDS,
            {1: [100.0], 8: [560.0]},
            {**GMI, "environments": 64},
            "fastest here: 8 instances x 64 env",
        ),
        (
            WORLDS,
            {1: [100.0], 8: [90.0]},
            {"kind": "gmi", "instances": 1},
            "nothing is clearly faster here than one instance",
        ),
    ],
)
def test_the_fastest_layout_is_written_if_it_is_clearly_faster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    file: Path,
    speeds: dict[int, list[float]],
    written: dict[str, Any] | None,
    said: str,
) -> None:
    """Speeds are measured in turns, by number of instances; others cannot run, nor can five environments at once."""

    def answer(instances: int, environments: int) -> Profile | None:
        if instances not in speeds or (file == HOPPER and environments > 4):
            return None
        turns = speeds[instances]
        turns.append(turns.pop(0))
        return Profile(turns[-1], 2**20 * (100 + environments))

    monkeypatch.setattr("runtime.machine.cores", lambda: 8)
    monkeypatch.setattr("runtime.cli.plan_measuring.make_profiler", lambda *_: answer)
    monkeypatch.setenv("PYTHONPATH", str(WORLDS.parent))
    changes = ["scaler.actors_fixed=64"] if file == HOPPER else []
    words = ["plan", str(file), "--measure", "--write", str(tmp_path / "fast.yaml")]
    code = main([*words, *(word for one in changes for word in ("--set", one))])
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert code == (0 if written else 2)
    if written is None:
        assert list(tmp_path.iterdir()) == []
        return
    found = load_experiment(tmp_path / "fast.yaml")
    changes += re.findall("--set '(.*)'", printed.out)
    assert load_experiment(file, changes).model_dump() == found.model_dump()
    assert found.learner.model_dump() | written == found.learner.model_dump()


def test_a_layout_runs_here_and_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.cli.plan_measuring.ROUNDS", 2)
    (tmp_path / "cart.yaml").write_text(
        "environment: {id: CartPole-v1}\nalgorithm: {epochs: 1, minibatch_steps: 32}\nscaler: {actors_fixed: 2}\n"
        "actor: {fragment_steps: 32}\nlearner: {kind: gmi, device: cpu, threads: 1}\nbudget: {usd: 0.000001}\n"
    )
    lines: list[str] = []
    measured = make_profiler(load_experiment(tmp_path / "cart.yaml"), lines.append)(1, 2)
    assert measured is not None and measured.samples_per_s > 0.0
    assert 2**24 < measured.memory_bytes < 2**32
    [line] = lines
    assert line.startswith("  1 instances x 2 environments: ")
