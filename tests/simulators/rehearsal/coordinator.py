"""The coordinator's handler by the rehearsal's clock."""

from __future__ import annotations

import os
from typing import Any

from runtime.aws.learner import coordinator
from tests.simulators.rehearsal import LEG_VARIABLE
from tests.simulators.rehearsal.clock import Clock


def handler(event: dict[str, Any], context: object) -> Any:
    """Runs a leg."""
    return coordinator.handler(
        event, context, now=Clock.of_this_process().now, leg_s=float(os.environ[LEG_VARIABLE])
    )
