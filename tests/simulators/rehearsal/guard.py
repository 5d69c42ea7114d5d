"""Runs the guard's handler from its own zip, by the rehearsal's clock."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.simulators.rehearsal import GUARD_FOLDER_VARIABLE

_TOO_HEAVY = ("pydantic", "torch", "numpy", "redis", "yaml")

sys.path.insert(0, os.environ[GUARD_FOLDER_VARIABLE])

import runtime.aws.guard.function as guard  # noqa: E402
from runtime.aws.guard.watch import PAUSE_S, TICK_S  # noqa: E402
from tests.simulators.rehearsal.clock import Clock  # noqa: E402


def handler(event: dict[str, Any], context: object) -> Any:
    """Raises: RuntimeError: The code does not come from the zip, or needs something that the zip lacks."""
    if not Path(guard.__file__).is_relative_to(os.environ[GUARD_FOLDER_VARIABLE]):
        raise RuntimeError(f"{guard.__file__} is not of the guard's zip")
    heavy = [name for name in _TOO_HEAVY if name in sys.modules]
    if heavy:
        raise RuntimeError(f"the guard imports {', '.join(heavy)}")
    # Waits within a tick are shorter here. The next tick checks unfinished work again. An update waits for a learner.
    tick_s = TICK_S if event.get("RequestType") == "Update" else TICK_S / 80
    return guard.handler(
        event, context, now=Clock.of_this_process().now, tick_s=tick_s, pause_s=PAUSE_S / 20
    )
