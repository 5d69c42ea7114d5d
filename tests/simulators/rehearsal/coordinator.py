"""The coordinator's handler by the rehearsal's clock."""

from __future__ import annotations

from typing import Any

from runtime.aws.learner import coordinator
from runtime.times import LEG_S
from tests.simulators.rehearsal.clock import Clock


def handler(event: dict[str, Any], context: object) -> Any:
    """Runs a leg."""
    return coordinator.handler(event, context, now=Clock.of_this_process().now, leg_s=LEG_S)
