"""The guide's example, as a reader would copy it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import ROOT


def test_the_example_learns_within_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "guides" / "actor-pool.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102  # it is ours
    assert np.mean(list(names["returns"].values())) > 150
    assert len(names["pool"].rows) == 320
    assert 0 < names["pool"].spent_usd < 0.05
