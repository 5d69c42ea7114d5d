"""The list of deliberate defects still names what the product has."""

from __future__ import annotations

import ast

import pytest

from tests.helpers import ROOT
from tests.simulators.defects import DEFECTS, Defect
from tests.simulators.rehearsal.scenarios import SCENARIOS


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_changes_one_place_and_has_a_scenario(defect: Defect) -> None:
    text = (ROOT / defect.file).read_text()
    assert text.count(defect.right) == 1
    if defect.file.endswith(".py"):
        # One that cannot be imported is caught by anything.
        ast.parse(text.replace(defect.right, defect.wrong))
    assert defect.scenario in SCENARIOS
