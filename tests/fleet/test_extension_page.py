"""docs/design/add-a-fleet.md: its example is taken as it stands, registered by its one line, and trained with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers import PATIENCE_S, ROOT

PAGE = (ROOT / "docs" / "design" / "add-a-fleet.md").read_text()
EXAMPLE, LINE = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(FILE,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TRAIN = """
import sys
from runtime.config.fleets import FLEETS
FLEETS.update({LINE})
from runtime.cli.main import main
sys.exit(main(["train", "experiment.yaml", "--out", "run"]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "thread_fleet.py").write_text(EXAMPLE)
    (folder / "experiment.yaml").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN.replace("{LINE}", "{" + LINE + "}")], cwd=folder, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def test_the_pages_fleet_trains(trained: Path) -> None:
    rows = [json.loads(line) for line in (trained / "rounds.jsonl").read_text().splitlines()]
    assert [row["round_index"] for row in rows] == [1, 2]
    assert [(row["actors_failed"], row["actors_late"]) for row in rows] == [(0, 0)] * 2
    assert all(row["actors_cost_usd"] > 0.0 for row in rows)


def test_the_run_keeps_what_the_page_wrote(trained: Path) -> None:
    assert yaml.safe_load((trained / "config.yaml").read_text())["fleet"]["kind"] == "threads"
