"""The example of docs/design/add-a-scaler.md, as it stands there: one file and one line, and it trains."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE_S, SMALL_EXPERIMENT, overrides

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the page's file and line."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("nitro_rl", "runtime", "lambda_actor"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    example, line = re.findall(r"```python\n(.*?)```", (ROOT / "docs/design/add-a-scaler.md").read_text(), re.DOTALL)
    (folder / "runtime/scaler/momentum.py").write_text(example)
    registry = folder / "runtime/config/variants.py"
    before, head, after = registry.read_text().partition("SCALERS: Variants[ScalerSettings] = Variants({\n")
    assert head
    registry.write_text(before + head + after.replace("})", f"{line}}})", 1))
    (folder / "small.yaml").write_text(SMALL_EXPERIMENT)
    (folder / "mine.yaml").write_text("extends: small.yaml\nscaler: {kind: momentum, actors_step: 2}\n")
    return folder


def runtime(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "runtime", *arguments], cwd=copy, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False, env={**os.environ, "PYTHONPATH": str(copy)})


def test_it_trains_and_its_decisions_follow_the_returns(copy: Path) -> None:
    done = runtime(copy, "train", "mine.yaml", "--out", "out", *overrides(
        stop__max_rounds=3, fleet__processes=1, evaluation__every_rounds=0))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (copy / "out" / "rounds.jsonl").read_text().splitlines()]
    count, best = 2, None
    for row in rows:
        assert row["actor_count_wanted"] == row["actor_count"] == count
        found = row["episode_return_mean"]
        if found is not None:
            count = min(max(count + (2 if best is None or found > best else -2), 2), 6)
            best = found if best is None else max(best, found)
    assert len(rows) == 3
    assert len({row["actor_count"] for row in rows}) > 1


def test_its_key_is_explained_and_checked(copy: Path) -> None:
    assert "scaler.actors_step\n      actors that a round has more or fewer than the one before (momentum)" in runtime(
        copy, "explain", "scaler").stdout
    refused = runtime(copy, "train", "mine.yaml", "--set", "scaler.actors_stp=3")
    assert (refused.returncode, "did you mean scaler.actors_step?" in refused.stderr) == (2, True)
