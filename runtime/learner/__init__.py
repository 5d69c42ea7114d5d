"""The learner: trains the policy on what the actors bring back. The only door to torch besides the detector."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.config.schema import Experiment
    from runtime.interfaces import Learner
    from runtime.learner.actor_critic import Group


def make_learner(experiment: Experiment, spaces: Spaces, *, device: str, group: Group | None = None) -> Learner:
    """The learner that the experiment names; torch is imported here and no earlier.

    Args:
        experiment: Resolved and fitted to its environment.
        device: ``cpu`` or ``cuda``.
        group: The processes that share each gradient step; null = this one alone.
    """
    module, _, name = experiment.algorithm.chosen.learner.partition(":")
    algorithm = getattr(import_module(module), name)
    return algorithm(spaces, experiment.algorithm, network=experiment.network.kind, seed=experiment.seed,
                     device=device, threads=experiment.learner.threads, group=group)
