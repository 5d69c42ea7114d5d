"""Places for runs: this machine or Ray, chosen by the experiment file; AWS is in `runtime.aws.learner`."""

from __future__ import annotations

from runtime.experiment.kinds import load
from runtime.experiment.resolved import ResolvedExperiment
from runtime.training.opening import Backend


def make_backend(experiment: ResolvedExperiment) -> Backend:
    """Makes the backend for ``fleet.kind``: the one named by its settings, a Ray cluster, or this machine.

    A deployed learner and a pool with actors in AWS make their own.

    Raises:
        ExperimentError: The backend cannot be used here.
    """
    if path := experiment.fleet.backend:
        backend: Backend = load(path)(experiment)
        return backend
    if experiment.fleet.kind == "ray":
        from runtime.training.backends.ray_cluster import RayBackend

        return RayBackend(experiment)
    from runtime.training.backends.this_machine import ThisMachine

    return ThisMachine(experiment)
