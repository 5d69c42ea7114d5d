"""Chooses a run's backend by the experiment file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from runtime.config.resolved import ResolvedExperiment
from runtime.ports.run import Backend
from runtime.settings.kinds import load


def make_backend(experiment: ResolvedExperiment) -> Backend:
    """Makes the backend that ``fleet.kind`` needs: what its settings name, or what is here for it, or this machine.

    Args:
        experiment: Resolved.

    Raises:
        ExperimentError: That backend cannot be used here.
    """
    if path := experiment.fleet.chosen.backend:
        backend: Backend = load(path)(experiment)
        return backend
    return BACKENDS.get(experiment.fleet.kind, _this_machine)(experiment)


def _this_machine(experiment: ResolvedExperiment) -> Backend:
    from runtime.backends.this_machine import ThisMachine

    return ThisMachine(experiment)


def _aws(experiment: ResolvedExperiment) -> Backend:
    from runtime.backends.aws.deployment import Deployment

    deployment = Deployment.from_environment(os.environ)
    if deployment is None:
        # It says where the experiment can run, and where it cannot.
        return _this_machine(experiment)
    from runtime.backends.aws.backend import AwsBackend
    from runtime.backends.aws.stack import tell_stack

    return AwsBackend(experiment, deployment=deployment, announce=lambda: tell_stack(deployment, is_up=True))


def _ray(experiment: ResolvedExperiment) -> Backend:
    from runtime.backends.ray_cluster import RayBackend

    return RayBackend(experiment)


BACKENDS: Mapping[str, Callable[[ResolvedExperiment], Backend]] = {"lambda": _aws, "ray": _ray}
"""Makers of other backends than this machine, by ``fleet.kind``."""
