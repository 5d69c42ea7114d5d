"""The learner: trains the policy on what the actors bring back. The only door to torch besides the detector."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from runtime.config.updaters import UPDATERS

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.config.schema import AlgorithmSection
    from runtime.learner.actor_critic import Group
    from runtime.learner.remote.updater import Remote
    from runtime.ports.learning import Learner, Updater


@dataclass(frozen=True)
class LearnerSpec:
    """What a learner is made of, the same in each of its processes.

    Attributes:
        algorithm: Resolved and fitted to the environment.
        spaces: The environment's.
        network: The text of a `lambda_actor.policy.Architecture`.
        seed: Of the networks and of all that is drawn later.
        threads: CPU threads of the update.
        initialisation: Of the networks, ``orthogonal`` or ``default``.
        initial_std: Of continuous actions, before the first update.
    """

    algorithm: AlgorithmSection
    spaces: Spaces
    network: str
    seed: int
    threads: int = 1
    initialisation: str = "orthogonal"
    initial_std: float = 1.0


def make_learner(spec: LearnerSpec, *, device: str, group: Group | None = None) -> Learner:
    """Makes the learner that the experiment names; torch is imported here and no earlier.

    Args:
        spec: What it is made of.
        device: ``cpu`` or ``cuda``.
        group: The processes that share each gradient; None = this one alone.
    """
    learner: Learner = _named(spec.algorithm.chosen.learner)(
        spec.spaces, spec.algorithm, network=spec.network, seed=spec.seed, device=device, threads=spec.threads,
        group=group, initialisation=spec.initialisation, initial_std=spec.initial_std)
    return learner


def make_updater(name: str, learner: Learner, remote: Remote | None = None) -> Updater:
    """Makes the updater that the experiment names.

    Args:
        name: A key of `runtime.config.updaters.UPDATERS`.
        learner: What it trains.
        remote: What it needs if it trains elsewhere.
    """
    updater: Updater = _named(UPDATERS[name])(learner, *([] if remote is None else [remote]))
    return updater


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
