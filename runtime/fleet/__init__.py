"""Fleets, which run actors: one file per kind and one for its settings, chosen by ``fleet.kind``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ACTOR_HANDLER = "lambda_actor.handler:handler"
"""The actor function."""
ACTORS_HANDLER = "lambda_actor.handler:handler_together"
"""The actor function for several events at once."""
ACTOR_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""Environment variables of processes with environments: one thread, and a fixed hash order, which replayed episodes
need.
"""


@dataclass(frozen=True, kw_only=True)
class FleetSetup:
    """Everything a fleet may need; each kind reads its part.

    Attributes:
        concurrency: Actors that may run at once.
        timeout_s: Seconds after which an actor is ended.
        memory_mib: Memory of the actor function in MiB.
        log_path: File for the actors' output, if they run on this machine.
        credentials: Environment variables for the actors only, by name.
        function: What actors run: a handler, ``module:function``, or on Lambda the function's ARN.
        together: Most invocations that a process of this machine serves at once. Above 1, the handler takes several
            events and returns their answers or exceptions.
    """

    concurrency: int
    timeout_s: float
    memory_mib: int
    log_path: Path
    credentials: Mapping[str, str] = field(default_factory=dict)
    function: str = ACTOR_HANDLER
    together: int = 1
