"""Where actors run: one file for each kind of fleet and one for its settings, chosen by ``fleet.kind``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ACTOR_HANDLER = "lambda_actor.handler:handler"
"""The actor function."""
ACTORS_HANDLER = "lambda_actor.handler:handler_together"
"""The same for several events at once."""
ACTOR_VARIABLES = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0"}
"""Of a process with environments: one thread; and sets in the same order everywhere, or no episode can be replayed."""


@dataclass(frozen=True, kw_only=True)
class FleetSetup:
    """What a fleet is made from; a fleet reads what concerns it.

    Attributes:
        concurrency: Actors that may run at once.
        timeout_s: Seconds after which an actor is ended.
        memory_mib: Memory of the actor function in MiB.
        log_path: File for what actors print, if they run on this machine.
        credentials: Environment variables for the actors alone, by name.
        function_arn: ARN of the deployed actor function; empty on this machine.
        handler: What processes of this machine, or of a Ray cluster, run, as ``module:function``.
        together: Invocations that a process of this machine serves at once, at most; with more than one, ``handler``
            takes several events and returns their answers, be it exceptions.
        is_batch: Whether those take no longer together than one alone. Then none is served alone where more wait.
    """

    concurrency: int
    timeout_s: float
    memory_mib: int
    log_path: Path
    credentials: Mapping[str, str] = field(default_factory=dict)
    function_arn: str = ""
    handler: str = ACTOR_HANDLER
    together: int = 1
    is_batch: bool = False
