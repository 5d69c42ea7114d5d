"""The learner trains the policy on the actors' trajectories. Only the learner and the detector import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import ExperimentError
from runtime.experiment.kinds import load

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.experiment.algorithm import AlgorithmSettings
    from runtime.learner.interfaces import Learner


LEARNER_HANDLER = "runtime.learner.functions.handler:handler"
"""The learner function, in the form that fleets take."""


@dataclass(frozen=True)
class LearnerSpec:
    """Specifies a learner; every one of its processes gets the same.

    Attributes:
        algorithm: Resolved and fitted to the environment.
        spaces: The environment's.
        network: The text of a `lambda_actor.policy.Architecture`.
        seed: Seeds the networks and all later draws.
        threads: CPU threads of the update.
        initial_std: σ of continuous actions before the first update.
        initialisation: Kind of initial weights.
    """

    algorithm: AlgorithmSettings
    spaces: Spaces
    network: str = "mlp"
    seed: int = 0
    threads: int = 1
    initial_std: float = 1.0
    initialisation: str = "orthogonal"


def make_learner(spec: LearnerSpec, *, device: str) -> Learner:
    """Makes the experiment's learner. Imports torch, which nothing does before.

    Args:
        spec: The specification.
        device: ``cpu`` or ``cuda``.
    """
    learner: Learner = load(spec.algorithm.learner)(spec, device=device)
    return learner


def device_of(wanted: str) -> str:
    """Returns the device that trains policies here, ``cpu`` or ``cuda``.

    Args:
        wanted: ``learner.device``.

    Raises:
        ExperimentError: There is no GPU that torch can use.
    """
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        why = "no usable GPU is here"
        if torch.version.cuda is None:
            why = (
                f"torch {torch.__version__} is a build without CUDA; python -m pip install "
                "--force-reinstall torch brings one"
            )
        raise ExperimentError(f"learner.device = 'cuda': {why}; allowed: cpu | auto")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
