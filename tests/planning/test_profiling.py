"""Layouts are measured by running rounds, and the next run uses the fastest."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from tests.helpers import run_command, summary

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
            f"{instances} instances, {environments} environments each"
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
