"""Ray-cluster settings that are refused before anything starts. tests/fleet/test_ray_fleet.py trains on a cluster."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from runtime.errors import ExperimentError, MissingExtraError
from runtime.experiment.loading import load_experiment
from runtime.training.backends import make_backend
from tests.helpers import SMALL_EXPERIMENT


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["fleet.address=auto"],
            "cache.url = null: the nodes of fleet.address = auto reach no server",
        ),
        (["fleet.address=first:6379", "cache.url=unix:///tmp/server"], "or cache.kind = none"),
        (
            ["fleet.address=ray://first:10001"],
            r"ray://first:10001 .* allowed: null \| auto \| HOST:PORT",
        ),
        (
            ["learner.kind=function"],
            r"learner.kind = function: .* allowed with fleet.kind = ray: instance \| stellaris",
        ),
    ],
)
def test_what_cannot_run_there_is_refused(
    settings: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "small.yaml").write_text(SMALL_EXPERIMENT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ExperimentError, match=words):
        make_backend(load_experiment(file, ["fleet.kind=ray", *settings]).resolved())


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "small.yaml").write_text(SMALL_EXPERIMENT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs Ray: pip install 'nitro-rl\[ray\]'"):
        make_backend(load_experiment(file, ["fleet.kind=ray"]).resolved())
