"""How an experiment is displayed, and the contents of its config.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lambda_actor.spaces import Spaces
from runtime.experiment.loading import (
    experiment_from_tree,
    load_experiment,
)
from runtime.experiment.schema import Experiment

MINIMAL: dict[str, Any] = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0}}


def made(**sections: Any) -> Experiment:
    return experiment_from_tree(MINIMAL | sections, source="x.yaml")


def fitted(**sections: Any) -> Experiment:
    return made(**sections).resolved().fitted(Spaces((11,), action_size=3), preprocessing="none")


@pytest.mark.parametrize(
    ("sections", "gone"),
    [
        ({"scaler": {"kind": "nitro"}}, "scaler.actors_fixed"),
        ({"algorithm": {"kind": "impala"}}, "scaler.actors_max"),
        ({"learner": {"kind": "stellaris"}, "cache": {"kind": "none"}}, "cache.url"),
        ({"fleet": {"kind": "ray"}}, "learner.market"),
    ],
)
def test_what_nothing_reads_is_not_in_config_yaml(
    sections: dict[str, Any], gone: str, tmp_path: Path
) -> None:
    experiment = fitted(**sections)
    tree = yaml.safe_load(experiment.to_yaml())
    section, _, key = gone.partition(".")
    assert key not in tree[section]
    for name, written in sections.items():
        assert tree[name]["kind"] == written["kind"]
    (tmp_path / "config.yaml").write_text(experiment.to_yaml())
    again = load_experiment(tmp_path / "config.yaml")
    assert again.resolved().identity == experiment.identity


def test_what_was_given_is_told_from_defaults_and_from_what_is_filled_in() -> None:
    experiment = fitted(
        algorithm={"kind": "ppo", "epochs": 3, "discount": 0.99},
        cache={"url": "redis://me:h1dden@host"},
        learner={"instance_types": ["c7i.xlarge"]},
        seed=0,
    )
    assert yaml.safe_load(experiment.given_yaml()) == {
        **MINIMAL,
        "algorithm": {"kind": "ppo", "epochs": 3},
        "cache": {"url": "redis://me:***@host"},
        "learner": {"kind": "instance", "instance_types": ["c7i.xlarge"]},
    }
    other = experiment.model_copy(update={"seed": 4})
    assert yaml.safe_load(other.given_yaml())["seed"] == 4
