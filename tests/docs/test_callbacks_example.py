"""docs/guides/training.md: trains with its callback exactly as printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers import ROOT, rounds, run_command, summary

PAGE = (ROOT / "docs" / "guides" / "training.md").read_text()


def test_the_pages_callback_ends_the_run_when_it_no_longer_improves(tmp_path: Path) -> None:
    section = PAGE.split("\n## Callbacks\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (experiment,) = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "plateau.py").write_text(code)
    (tmp_path / "plateau.yaml").write_text(experiment)
    done = run_command("train", "plateau.yaml", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    returns = [row["evaluation_return_mean"] for row in rounds(tmp_path / "run")[1:]]
    best = max(returns)
    assert returns.index(best) == len(returns) - 3
    reason = f"callback: no evaluation above {best:g} in the last 2"
    assert summary(tmp_path / "run")["stop_reason"] == reason
