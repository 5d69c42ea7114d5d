"""The notebook runs as it stands, and is shown with what it gave."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import script

SHIPPED, SHORT = '"max_steps": 10_000', '"max_steps": 1_024'
"""One round instead of ten."""


def kinds(notebook: dict[str, Any]) -> list[list[str]]:
    """Of each code cell, what kinds of outputs it has."""
    return [[kind for output in cell["outputs"] for kind in output.get("data", [output["output_type"]])]
            for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_quickstart_runs_and_is_shown_with_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quickstart = script("make_quickstart")
    shipped = json.loads(quickstart.NOTEBOOK.read_text())
    assert kinds(shipped) == [["stream"], ["image/png"], ["stream"]]
    told = "".join(line for cell in shipped["cells"] for output in cell.get("outputs", ())
                   for line in output.get("text", ()))
    assert not re.search(r"/\w+/", told), "a machine's path"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = copy.deepcopy(shipped)
    (training,) = (cell for cell in notebook["cells"] if SHIPPED in "".join(cell["source"]))
    training["source"] = ["".join(training["source"]).replace(SHIPPED, SHORT)]
    variables = quickstart.run_cells(notebook)
    assert kinds(notebook) == kinds(shipped)
    assert variables["result"].summary["stop_reason"] == "max_steps"
    assert variables["policy"].policy_version == 1
    assert [cell["execution_count"] for cell in shipped["cells"] if cell["cell_type"] == "code"] == [1, 2, 3]
