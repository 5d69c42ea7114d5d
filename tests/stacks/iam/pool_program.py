"""A pool's use of the role that it assumes, as a program to be read for its calls; it never runs."""

from __future__ import annotations

from typing import Any

from runtime.aws.learner.external import PoolBackend


def main(experiment: Any, found: Any, directory: Any, run: Any) -> None:
    """Opens, uses and closes a pool, as `runtime.pool.pool.ActorPool` uses a backend."""
    backend = PoolBackend(experiment, found)
    backend.fetch(directory)
    supplies = backend.supply(run)
    supplies.keeping.spent_usd()
    supplies.keeping.begins()
    supplies.keeping.ledger_changed(b"")
    supplies.fleet.start([])
    supplies.fleet.wait(1.0)
    supplies.keeping.on_end({})
