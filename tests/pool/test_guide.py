"""The guide shows parts of the examples, with which test_examples.py trains."""

from __future__ import annotations

import re

from tests.helpers import ROOT


def lines(code: str) -> str:
    """Code without indentation, as the guide has parts of functions."""
    return "\n".join(line.strip() for line in code.strip().splitlines())


def test_the_guides_code_is_from_the_examples() -> None:
    guide = (ROOT / "docs" / "guides" / "actor-pool.md").read_text()
    examples = [
        lines((ROOT / "docs" / "examples" / f"{name}.py").read_text())
        for name in ("ppo_loop", "evolution")
    ]
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert [[lines(block) in example for example in examples] for block in blocks] == [
        [True, False]
    ] * 4 + [[False, True]]
