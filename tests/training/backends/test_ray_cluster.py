"""Ray-cluster settings that are refused before anything starts. tests/fleet/test_ray_fleet.py trains on a cluster."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from runtime.errors import ExperimentError, MissingExtraError
from runtime.experiment.loading import load_experiment
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter
from runtime.training.backends import make_backend
from tests.helpers import SMALL_EXPERIMENT, cost_model


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
        (
            ["learner.kind=stellaris", "learner.place=lambda"],
            r"place = 'lambda': .* ray: ray \| processes",
        ),
        (
            [
                "learner.kind=stellaris",
                "learner.place=ray",
                "fleet.address=auto",
                "cache.kind=none",
            ],
            "cache.kind = none: gradients on the nodes of fleet.address = auto have no server",
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


def test_a_run_that_was_elsewhere_until_now_is_billed_from_its_start_on(tmp_path: Path) -> None:
    (file := tmp_path / "small.yaml").write_text(SMALL_EXPERIMENT)
    model, since_s = cost_model(load_experiment(file, []).resolved()), 1.8e9
    before = Meter(model, Budget(1.0))
    before.add_spent(0.25)
    meter = Meter(model, Budget(1.0), clock=BillingClock(since_s, now=lambda: since_s + 3600))
    meter.set_state(before.get_state())
    meter.forfeit()
    assert 1.0 < (meter.spent_usd - 0.25) / model.learner_usd_per_hour[0] < 2.0
