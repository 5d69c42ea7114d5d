"""Instances of which one kills itself in each of the first rounds, each time at another moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.gmi import worker

MOMENTS = ("joining", "asked", "summing", "stored", "playing")
"""By policy version."""
VARIABLE = "TESTS_GMI_DYING"
"""Names the instance that dies first, and a folder with a file for each moment that has happened."""
HANDLER = f"{__name__}:handler_together"


def die_at(moment: str, event: Mapping[str, Any]) -> None:
    first, folder = os.environ[VARIABLE].split("|")
    version, flag = MOMENTS.index(moment), Path(folder, moment)
    its_turn = (version, (int(first) + version) % 2)
    if (event["policy_version"], event["instance"]) == its_turn and not flag.exists():
        flag.touch()
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
