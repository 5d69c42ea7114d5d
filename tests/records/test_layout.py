"""Names of runs."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from runtime.experiment.loading import experiment_from_tree
from runtime.records.layout import default_directory, run_name


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ("Hopper-v5", "mine-Hopper-v5-impact-fixed-seed-7"),
        ("ALE/Pong-v5", "mine-ALE-Pong-v5-impact-fixed-seed-7"),
        ("my_package.envs:make", "mine-my_package.envs-make-impact-fixed-seed-7"),
        ("module:" + "x" * 300, "mine-module-" + "x" * 108 + "-seed-7"),
    ],
)
def test_a_name_tells_the_runs_apart_and_names_a_folder(environment: str, name: str) -> None:
    experiment = experiment_from_tree(
        {
            "environment": {"id": environment},
            "algorithm": {"kind": "impact"},
            "scaler": {"kind": "fixed"},
            "budget": {"usd": 1.0},
            "seed": 7,
        },
        source="a test",
    )
    assert run_name("mine", experiment) == name
    begun = datetime(2026, 11, 23, 9, 5, 1)
    assert default_directory("mine", experiment, begun) == Path("runs", f"{name}-20261123-090501")
    several = default_directory("mine", experiment, begun, has_seed=False)
    assert several == Path("runs", f"{name.removesuffix('-seed-7')}-20261123-090501")
