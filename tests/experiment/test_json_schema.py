"""The JSON schema, by which editors check an experiment file while it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.make_experiment_schema import PATH, schema
from runtime.experiment import yaml_text
from tests.helpers import ROOT

VALIDATOR = jsonschema.Draft202012Validator(schema())
SHIPPED = sorted((ROOT / "experiments").glob("**/*.yaml"))


def test_it_is_up_to_date() -> None:
    assert json.loads(PATH.read_text()) == schema(), "python docs/make_experiment_schema.py"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_fits_and_names_it(path: Path) -> None:
    text = path.read_text()
    assert list(VALIDATOR.iter_errors(yaml_text.parse(text, str(path)))) == []
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == PATH


@pytest.mark.parametrize(
    "tree",
    [
        {"algorithm": {"kind": "ppo", "ppo": {"epochs": 3}}},
        {"algorithm": {"kind": "impact", "epochs": 3}},
        {"algorithm": {"epochs": 0}},
        {"scaler": {"kind": "nitro", "actors_fixed": 3}},
        {"budget": {"usd": "much"}},
        {"bugdet": {}},
    ],
)
def test_what_is_refused_does_not_fit(tree: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(tree))


@pytest.mark.parametrize(
    "tree",
    [
        {"algorithm": {"epochs": 3}, "extends": "a.yaml"},
        {"scaler": {"kind": "my.scaler:Settings", "step": 2}},
        {"fleet": {"processes": None}, "learner": {"kind": "stellaris", "learners": 2}},
    ],
)
def test_what_is_allowed_fits(tree: dict[str, Any]) -> None:
    assert list(VALIDATOR.iter_errors(tree)) == []
