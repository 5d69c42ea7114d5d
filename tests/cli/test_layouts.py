"""``python -m runtime plan --measure``: the layout that it writes and keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.cli.main import main
from runtime.experiment.loading import load_experiment
from runtime.gmi.search import Profile
from tests.helpers import ROOT, run_command, summary

HOPPER = ROOT / "experiments" / "hopper-fixed.yaml"
MIB = 2**20


def profile(instances: int, environments: int) -> Profile | None:
    """Eight instances run at 70 % of one's speed each. A vector gains nothing, and five instances do not fit."""
    if environments > 4:
        return None
    return Profile(
        100.0 if instances == 1 else 70.0,
        MIB * (100 + environments),
        *(() if instances == 1 else ("har", 0.0123)),
    )


Measured = Callable[..., int]


@pytest.fixture()
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Runs the command with a profiler that answers immediately."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("runtime.experiment.resolved._cores", lambda: 8)

    def run(
        profiler: Callable[[int, int], Profile | None],
        alone: Profile | None = None,
    ) -> int:
        monkeypatch.setattr(
            "runtime.cli.plan_measuring.make_profiler",
            lambda *_: (
                lambda instances, environments: (
                    profiler(instances, environments) if instances else alone
                )
            ),
        )
        return main(
            [
                "plan",
                str(HOPPER),
                "--measure",
                "--write",
                str(tmp_path / "fast.yaml"),
                "--set",
                "scaler.kind=fixed",
                "--set",
                "scaler.actors_fixed=64",
            ]
        )

    return run


def test_the_command_writes_and_keeps_the_fastest_layout(
    tmp_path: Path, capsys: Any, measure: Measured
) -> None:
    assert measure(profile) == 0
    output = capsys.readouterr().out
    assert "on 8 cores" in output and "fastest here: 8 instances x 1 environments" in output
    written = load_experiment(tmp_path / "fast.yaml")
    assert (written.scaler.most_actors, written.learner.kind) == (64, "gmi")
    settings: Any = written.learner
    assert (settings.instances, settings.environments, settings.reduction) == (8, 1, "har")
    changes = [
        line.removeprefix("  --set ").strip("'")
        for line in output.splitlines()
        if line.startswith("  --set ")
    ]
    overrides = ["scaler.kind=fixed", "scaler.actors_fixed=64", *changes]
    assert load_experiment(HOPPER, overrides).model_dump() == written.model_dump()
    (path,) = (tmp_path / "cache" / "nitro-rl" / "layouts").iterdir()
    assert '"instances": 8' in path.read_text()


def test_no_layout_is_kept_if_one_learner_is_faster(
    tmp_path: Path, capsys: Any, measure: Any
) -> None:
    assert measure(profile, Profile(1e9, 0)) == 0
    output = capsys.readouterr().out
    assert "fastest here: one learner, so no layout is kept" in output
    assert load_experiment(tmp_path / "fast.yaml").learner.kind == "instance"
    assert not (tmp_path / "cache").exists()


def test_nothing_is_written_if_nothing_runs(tmp_path: Path, capsys: Any, measure: Measured) -> None:
    assert measure(lambda *_: None) == 2
    assert "no layout of" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


FILE = """\
environment: {id: CartPole-v1}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 32}
scaler: {kind: fixed, actors_fixed: 2}
actor: {fragment_steps: 32}
learner: {device: cpu, threads: 1}
budget: {usd: 1.0}
stop: {max_rounds: 1}
evaluation: {every_rounds: 0}
"""


def test_what_is_measured_here_is_written_and_taken_by_the_next_run(tmp_path: Path) -> None:
    (tmp_path / "cart.yaml").write_text(FILE)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    measured = run_command(
        "plan", "cart.yaml", "--measure", "--write", "fast.yaml", cwd=tmp_path, **cache
    )
    assert measured.returncode == 0, measured.stderr
    cores = len(os.sched_getaffinity(0))
    layouts = [(1, 1), (1, 2)] + [(2, 1)] * (cores > 1)
    for instances, environments in layouts:
        assert (
            f"{instances} instances x {environments} environments: "
            in measured.stdout + measured.stderr
        )
    written = yaml.safe_load((tmp_path / "fast.yaml").read_text())["learner"]
    trained = run_command(
        "train", "cart.yaml", "--set", "learner.kind=gmi", "--out", "run", cwd=tmp_path, **cache
    )
    assert trained.returncode == 0, trained.stderr
    assert summary(tmp_path / "run")["rounds"] == 1
    # The fastest one depends on this machine.
    if written["kind"] == "gmi":
        assert (written["instances"], written["environments"]) in layouts
        assert written["reduction"] in ("mpr", "flat", "har", "mrr")
        assert f"instances: {written['instances']}, each with up to {written['environments']}" in (
            trained.stdout
        )
    else:
        assert "no layout is kept" in measured.stdout
        assert "layout: as" not in trained.stdout
