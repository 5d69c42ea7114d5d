"""docs/guides/training.md: trains with its callback exactly as printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers import ROOT, rounds, run_command, summary

PAGE = (ROOT / "docs" / "guides" / "training.md").read_text()


def test_the_pages_callback_makes_the_corridor_longer_and_ends_the_run(tmp_path: Path) -> None:
    section = PAGE.split("\n## Callbacks\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (experiment,) = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "corridor.py").write_text(code)
    (tmp_path / "corridor.yaml").write_text(experiment)
    done = run_command("train", "corridor.yaml", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["stop_reason"] == "callback: 3 lengths are learned"
    lengths = [row["episode_length_mean"] for row in rounds(tmp_path / "run")]
    assert lengths[-1] > lengths[0] >= 2
