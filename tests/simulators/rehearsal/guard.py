"""Runs the guard's handler from its own zip, by the rehearsal's clock.

If GUARD_DEATHS_VARIABLE names a file, the process is killed right after each kind of call that changes anything, once
for each kind. The file lists the calls at which it already died.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.simulators.rehearsal import GUARD_DEATHS_VARIABLE, GUARD_FOLDER_VARIABLE

_HARMLESS = ("Get", "Describe", "List", "Scan", "Query", "Head")
_TOO_HEAVY = ("pydantic", "torch", "numpy", "redis", "yaml")

sys.path.insert(0, os.environ[GUARD_FOLDER_VARIABLE])

import botocore.client  # noqa: E402

import runtime.aws.guard.function as guard  # noqa: E402
from runtime.aws.guard.watch import PAUSE_S, TICK_S  # noqa: E402
from tests.simulators.rehearsal.clock import Clock  # noqa: E402

_CALL = botocore.client.BaseClient._make_api_call


def handler(event: dict[str, Any], context: object) -> Any:
    """Raises: RuntimeError: The code does not come from the zip, or needs something that the zip lacks."""
    if not Path(guard.__file__).is_relative_to(os.environ[GUARD_FOLDER_VARIABLE]):
        raise RuntimeError(f"{guard.__file__} is not of the guard's zip")
    heavy = [name for name in _TOO_HEAVY if name in sys.modules]
    if heavy:
        raise RuntimeError(f"the guard imports {', '.join(heavy)}")
    botocore.client.BaseClient._make_api_call = _CALL
    # A guard that dies before it answers CloudFormation refuses the stack, which is another scenario.
    if GUARD_DEATHS_VARIABLE in os.environ and "ResponseURL" not in event:
        _die_after_each_kind_of_change(Path(os.environ[GUARD_DEATHS_VARIABLE]))
    # Waits within a tick are shorter here. The next tick checks unfinished work again. An update waits for a learner.
    tick_s = TICK_S if event.get("RequestType") == "Update" else TICK_S / 20
    return guard.handler(
        event, context, now=Clock.of_this_process().now, tick_s=tick_s, pause_s=PAUSE_S / 20
    )


def _die_after_each_kind_of_change(deaths: Path) -> None:
    def call_and_die(self: Any, operation: str, arguments: dict[str, Any]) -> Any:
        answer = _CALL(self, operation, arguments)
        kind = f"{operation} {arguments.get('UpdateExpression', '')} {_step(arguments)}".strip()
        known = deaths.read_text().splitlines() if deaths.exists() else []
        if not operation.startswith(_HARMLESS) and kind not in known:
            with deaths.open("a") as file:
                file.write(kind + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    botocore.client.BaseClient._make_api_call = call_and_die


def _step(arguments: dict[str, Any]) -> str:
    return arguments.get("ExpressionAttributeNames", {}).get("#step", "")
