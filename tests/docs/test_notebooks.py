"""The notebooks run unchanged, and show their real output."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_docs import script
from tests.helpers import ROOT

TEXT, PICTURE = ["stream"], ["image/png"]


def kinds(notebook: dict[str, Any]) -> list[list[str]]:
    """Returns the kinds of outputs of each code cell."""
    return [
        [kind for output in cell["outputs"] for kind in output.get("data", [output["output_type"]])]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def ran(
    name: str,
    expected: list[list[str]],
    shipped: str,
    short: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """Runs a notebook with a shorter training; returns its variables."""
    notebooks = script("make_notebooks")
    path = ROOT / "docs" / f"{name}.ipynb"
    assert path in notebooks.NOTEBOOKS
    shown = json.loads(path.read_text())
    assert kinds(shown) == expected
    told = "".join(
        line
        for cell in shown["cells"]
        for output in cell.get("outputs", ())
        for line in output.get("text", ())
    )
    assert not re.search(r"/\w+/", told), "a machine's path"
    assert [cell["execution_count"] for cell in shown["cells"] if cell["cell_type"] == "code"] == [
        *range(1, len(expected) + 1)
    ]
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(ROOT / "docs")
    notebook = copy.deepcopy(shown)
    (training,) = (cell for cell in notebook["cells"] if shipped in "".join(cell["source"]))
    training["source"] = ["".join(training["source"]).replace(shipped, short)]
    variables: dict[str, Any] = notebooks.run_cells(notebook)
    assert kinds(notebook) == expected
    return variables


def test_the_quickstart_runs_and_is_shown_with_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = ran(
        "quickstart",
        [TEXT, PICTURE, TEXT],
        '"max_steps": 10_000',
        '"max_steps": 1_024',
        tmp_path,
        monkeypatch,
    )
    assert variables["result"].summary["stop_reason"] == "max_steps"
    assert variables["policy"].policy_version == 1


def test_the_pools_notebook_runs_and_is_shown_with_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    variables = ran(
        "actor_pool",
        [TEXT, PICTURE, TEXT, TEXT],
        "iterations=15",
        "iterations=2",
        tmp_path,
        monkeypatch,
    )
    assert len(variables["pool"].rows) == 3
    assert "another call of 4 actors, only of 2" in str(variables["refused"])
    assert [row.actor_count for row in variables["small"].rows] == [2]
