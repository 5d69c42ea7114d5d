"""A pool's use of the role that it assumes, as a program to be read for its calls; it never runs."""

from __future__ import annotations

from typing import Any

from runtime.aws.learner.external import PoolBackend


def main(experiment: Any, found: Any, directory: Any, run: Any) -> None:
    """Opens, uses and closes a pool, as `runtime.pool.pool.ActorPool` uses a backend."""
    backend = PoolBackend(experiment, found)
    backend.fetch(directory)
    resources = backend.open(run)
    resources.elsewhere.spent_usd()
    resources.elsewhere.begins()
    resources.elsewhere.ledger_changed(b"")
    resources.fleet.start([])
    resources.fleet.wait(1.0)
    resources.elsewhere.on_end({})
