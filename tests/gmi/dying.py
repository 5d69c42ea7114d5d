"""Instances of which one kills itself in each of the first rounds, each time at another moment."""

from __future__ import annotations

import itertools
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
    # After a step of gradients, which the other one has made too.
    dies_before(HostMemory, "reduce", "summing", event, calls=4)
    answers = worker.handler_together(events, context)
    die_at("stored", event)
    return answers


def dies_before(
    owner: Any, name: str, moment: str, event: Mapping[str, Any], calls: int = 1
) -> None:
    """Makes an instance die before this call of a method, counted from 1."""
    method = getattr(owner, name)
    real, counted = getattr(method, "real", method), itertools.count(1)

    def mortal(*args: Any, **options: Any) -> Any:
        if next(counted) == calls:
            die_at(moment, event)
        return real(*args, **options)

    mortal.real = real
    setattr(owner, name, mortal)
