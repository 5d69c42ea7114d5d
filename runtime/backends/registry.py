"""Chooses a run's backend by the experiment file."""

from __future__ import annotations

from runtime.config.resolved import ResolvedExperiment
from runtime.ports.run import Backend
from runtime.settings.kinds import load


def make_backend(experiment: ResolvedExperiment, name: str = "") -> Backend:
    """Makes the backend for ``fleet.kind``: the one named by its settings, a Ray cluster, or this machine.

    A deployed learner makes its own: see `runtime.backends.aws.attempt`.

    Args:
        experiment: Resolved.
        name: Name of the deployed experiment; only a pool that samples there needs it.

    Raises:
        ExperimentError: The backend cannot be used here.
    """
    if path := experiment.fleet.backend:
        backend: Backend = load(path)(experiment)
        return backend
    if experiment.fleet.kind == "lambda" and experiment.learner.is_external:
        from runtime.backends.aws.external import PoolBackend
        from runtime.backends.aws.pool_stack import find_pool

        return PoolBackend(experiment, find_pool(name))
    if experiment.fleet.kind == "ray":
        from runtime.backends.ray_cluster import RayBackend

        return RayBackend(experiment)
    from runtime.backends.this_machine import ThisMachine

    return ThisMachine(experiment)
