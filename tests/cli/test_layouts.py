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


def profile(instances: int, environments: int) -> Profile | None:
    """Eight instances run at 70 % of one's speed each. A vector gains nothing, and five environments do not fit."""
    if environments > 4:
        return None
    memory_bytes = 2**20 * (100 + environments)
    return (
        Profile(70.0, memory_bytes, "har", 0.0123)
        if instances > 1
        else Profile(100.0, memory_bytes)
    )


@pytest.mark.parametrize(
    ("code", "alone", "layout", "said"),
    [
        (0, None, ("gmi", 8, 1, "har"), "fastest here: 8 instances x 1 environments"),
        (0, Profile(1e9, 0), ("instance",), "fastest here: one learner"),
        (2, None, None, "no layout of"),
    ],
)
def test_the_fastest_layout_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    code: int,
    alone: Profile | None,
    layout: tuple[Any, ...] | None,
    said: str,
) -> None:
    def answers(instances: int, environments: int) -> Profile | None:
        return (profile(instances, environments) if layout else None) if instances else alone

    monkeypatch.setattr("runtime.experiment.resolved._cores", lambda: 8)
    monkeypatch.setattr("runtime.cli.plan_measuring.make_profiler", lambda *_: answers)
    given = ["scaler.kind=fixed", "scaler.actors_fixed=64"]
    words = ["plan", str(HOPPER), "--measure", "--write", str(tmp_path / "fast.yaml")]
    assert main([*words, *(word for one in given for word in ("--set", one))]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    if layout is None:
        assert list(tmp_path.iterdir()) == []
        return
    written = load_experiment(tmp_path / "fast.yaml")
    changes = re.findall("--set '(.*)'", printed.out)
    assert load_experiment(HOPPER, [*given, *changes]).model_dump() == written.model_dump()
    learner: Any = written.learner
    names = ("kind", "instances", "environments", "reduction")[: len(layout)]
    assert tuple(getattr(learner, name) for name in names) == layout


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
