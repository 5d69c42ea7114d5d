"""The coordinator's handler by the rehearsal's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runtime.aws.learner import coordinator
from runtime.times import LEG_S
from tests.simulators.rehearsal.clock import Clock


def handler(event: dict[str, Any], context: Any) -> Any:
    """Runs a leg, which has all of Lambda's limit by this clock."""
    by_this_clock = SimpleNamespace(
        aws_request_id=context.aws_request_id,
        get_remaining_time_in_millis=lambda: 1000 * LEG_S,
    )
    return coordinator.handler(event, by_this_clock, now=Clock.of_this_process().now)
