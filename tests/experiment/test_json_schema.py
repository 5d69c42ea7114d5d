"""The JSON schema, by which editors check an experiment file while it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.make_experiment_schema import PATH
from runtime.experiment import yaml_text
from tests.experiment.trees import SCHEMA, is_valid
from tests.helpers import ROOT


def test_it_is_up_to_date() -> None:
    assert json.loads(PATH.read_text()) == SCHEMA, "python docs/make_experiment_schema.py"


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("experiments/**/*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_file_fits_and_names_it(path: Path) -> None:
    text = path.read_text()
    assert is_valid(yaml_text.parse(text, str(path)))
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == PATH


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("algorithm: {kind: ppo, ppo: {epochs: 3}}", False),
        ("scaler: {kind: nitro, actors_fixed: 3}", False),
        ("algorithm: {epochs: 3}\nextends: a.yaml", True),
        ("scaler: {kind: 'my.scaler:Settings', step: 2}", True),
        ("fleet: {processes: null}\nlearner: {kind: stellaris, learners: 2}", True),
    ],
)
def test_keys_belong_to_their_kind(text: str, fits: bool) -> None:
    assert is_valid(yaml_text.parse(text, "x")) == fits
