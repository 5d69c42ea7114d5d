"""The examples of a trainer of one's own, of which the guide shows parts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nitro_rl import ActorPool
from tests.docs.test_docs import script
from tests.helpers import ROOT


@pytest.mark.parametrize(
    ("name", "loop", "iterations", "rows"),
    [("ppo_loop", "learn", 8, 8), ("evolution", "evolve", 6, 6 * 32)],
)
def test_it_learns_within_its_budget(
    name: str, loop: str, iterations: int, rows: int, tmp_path: Path, one_thread: None
) -> None:
    example = script(f"examples/{name}")
    with ActorPool(
        example.EXPERIMENT, budget_usd=0.05, out=tmp_path / "pool", is_quiet=True
    ) as pool:
        returns = list(getattr(example, loop)(pool, iterations))
        assert returns[0] < 60 and returns[-1] > 120, returns
        assert len(pool.rows) == rows
        assert 0 < pool.spent_usd < 0.05


def test_the_guides_code_is_from_the_examples() -> None:
    """Except indentation, as the guide has parts of functions."""
    docs = ROOT / "docs"
    guide, *examples = (
        re.sub(r"(?m)^ +", "", (docs / name).read_text())
        for name in ("guides/actor-pool.md", "examples/ppo_loop.py", "examples/evolution.py")
    )
    blocks = re.findall(r"```python\n(.*?)\n```", guide, re.DOTALL)
    assert [[block in example for example in examples] for block in blocks] == [
        [True, False]
    ] * 4 + [[False, True]]
