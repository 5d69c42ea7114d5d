"""Instances of which one kills itself, once, at a moment of an update."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.gmi import worker

MOMENTS = ("asked", "joining", "summing", "stored", "playing")
VARIABLE = "TESTS_GMI_DYING"
"""Names a moment, an instance, and a file that tells that it has happened."""
HANDLER = f"{__name__}:handler_together"


def die_at(moment: str, event: Mapping[str, Any]) -> None:
    wanted, instance, flag = os.environ[VARIABLE].split("|")
    # A group is joined in the first update.
    version = 0 if moment == "joining" else 1
    here = (moment, event["instance"], event["policy_version"])
    if here == (wanted, int(instance), version) and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def handler_together(events: Sequence[Mapping[str, Any]], context: object) -> list[Any]:
    """Is `runtime.gmi.worker.handler_together`, until it dies."""
    event = events[0]
    if "group" not in event:
        die_at("playing", event)
        return worker.handler_together(events, context)
    from runtime.gmi.group import Meeting
    from runtime.gmi.shared_memory import HostMemory

    die_at("asked", event)
    dies_before(Meeting, "get", "joining", event)
    dies_before(HostMemory, "reduce", "summing", event)
    answers = worker.handler_together(events, context)
    die_at("stored", event)
    return answers


def dies_before(owner: Any, name: str, moment: str, event: Mapping[str, Any]) -> None:
    method = getattr(owner, name)
    real = getattr(method, "real", method)

    def mortal(*args: Any, **options: Any) -> Any:
        die_at(moment, event)
        return real(*args, **options)

    mortal.real = real
    setattr(owner, name, mortal)
