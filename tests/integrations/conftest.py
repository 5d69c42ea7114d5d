"""Pools that end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nitro_rl import ActorPool

ACTORS, STEPS = 3, 40
LIMITS = {"CartPole-v1": 18, "Hopper-v5": 12}
"""Steps of an episode: some of a fragment end there, others fall before; none at the end of a call."""


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def opened(
            environment_id: str = "CartPole-v1", out: str = "pool", **sections: Any
        ) -> ActorPool:
            steps = LIMITS[environment_id]
            tree = {
                "environment": {"id": environment_id, "max_episode_steps": steps},
                "actor": {"fragment_steps": STEPS, "timeout_s": 30},
                "fleet": {"processes": 1},
                "scaler": {"kind": "fixed", "actors_fixed": ACTORS},
                "seed": 5,
            }
            made = ActorPool(tree | sections, budget_usd=1.0, out=tmp_path / out, is_quiet=True)
            return stack.enter_context(made)

        yield opened
