"""``python -m runtime plan --measure``: the layout that it writes and keeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.cli.main import main
from runtime.experiment.loading import load_experiment
from runtime.gmi.search import Profile
from tests.helpers import ROOT, run_command

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
        (0, Profile(1e9, 0), ("instance",), "fastest here: one learner, so no layout is kept"),
        (2, None, None, "no layout of"),
    ],
)
def test_the_fastest_layout_is_written_and_kept(
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

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    kept = list((tmp_path / "cache").glob("nitro-rl/layouts/*"))
    assert ['"instances": 8' in one.read_text() for one in kept] == [True] * (len(layout) > 1)


def test_what_is_measured_here_is_taken_by_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "cart.yaml").write_text(
        "environment: {id: CartPole-v1}\nalgorithm: {epochs: 1, minibatch_steps: 32}\nscaler: {actors_fixed: 2}\n"
        "actor: {fragment_steps: 32}\nlearner: {device: cpu, threads: 1}\nbudget: {usd: 1.0}\n"
        "stop: {max_rounds: 1}\nevaluation: {every_rounds: 0}\n"
    )
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ("plan", "cart.yaml", "--measure", "--write", "fast.yaml")
    measured = run_command(*words, cwd=tmp_path, **cache)
    assert measured.returncode == 0, measured.stderr
    assert "1 instances x 2 environments: " in measured.stdout
    words = ("train", "cart.yaml", "--set", "learner.kind=gmi", "--out", "run")
    trained = run_command(*words, cwd=tmp_path, **cache)
    assert trained.returncode == 0, trained.stderr
    # The fastest one depends on this machine.
    written = yaml.safe_load((tmp_path / "fast.yaml").read_text())["learner"]
    is_kept = written["kind"] == "gmi"
    assert ("no layout is kept" in measured.stdout) != is_kept
    assert ("layout: as" in " ".join(trained.stdout.split())) == is_kept
